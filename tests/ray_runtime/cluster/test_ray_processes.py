"""Which of Ray's own processes has died, as the driver sees it by itself."""

import contextlib
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray

from rlinf_async.ray_runtime.cluster import ray_processes
from rlinf_async.ray_runtime.cluster.ray_processes import (
    CHECK_INTERVAL_S,
    OwnProcesses,
    RayDied,
    RayWatch,
    dead_process,
    leaving_nothing_of_a_dead_ray,
)


class Node:
    """What Ray keeps of the node that a driver has started, or has joined."""

    def __init__(self, logs, *, address="127.0.0.1:1", **processes):
        self.all_processes = {
            name: [SimpleNamespace(process=SimpleNamespace(pid=pid, poll=lambda status=status: status))]
            for name, (pid, status) in processes.items()
        }
        self.gcs_address = address
        self.get_logs_dir_path = lambda: str(logs)


@pytest.fixture
def node(monkeypatch, tmp_path):
    def set_node(**facts):
        monkeypatch.setattr(ray._private.worker, "_global_node", Node(tmp_path, **facts))

    return set_node


def test_before_ray_has_started_nothing_has_died(monkeypatch):
    monkeypatch.setattr(ray._private.worker, "_global_node", None)
    assert dead_process() is None


@pytest.mark.parametrize(
    ("store", "raylet", "found"),
    [(None, None, None), (None, -9, "raylet (8)"), (-9, None, "gcs_server (7)"), (1, -9, "gcs_server (7)")],
)
def test_a_process_of_its_own_cluster_is_found_dead(node, store, raylet, found):
    node(gcs_server=(7, store), raylet=(8, raylet))
    dead = dead_process()
    assert (None if dead is None else str(dead)) == (found and f"Ray's process {found} has died")


@pytest.mark.parametrize(
    ("status", "closely", "found"),
    [(1, False, True), (1, True, True), (None, True, True), (None, False, False)],
)
def test_the_helper_that_a_raylet_dies_of_is_read_from_its_log(node, tmp_path, status, closely, found):
    node(gcs_server=(7, None), raylet=(8, status))
    (tmp_path / "raylet.out").write_text(
        "(raylet) agent_manager.cc:83: Agent process with name runtime_env_agent exited, exit code 0.\n"
        "(raylet) agent_manager.cc:87: The raylet exited immediately because one Ray agent failed, "
        "agent_name = runtime_env_agent.\n"
        "(raylet) agent_manager.cc:83: Agent process with name dashboard_agent exited, exit code 0.\n"
    )
    said = "Ray's process raylet (8) has died, as its helper RuntimeEnvAgent had"
    dead = dead_process(closely=closely)
    assert (None if dead is None else str(dead)) == (said if found else None)


def test_a_raylet_whose_helpers_end_in_order_is_not_dead(node, tmp_path):
    node(gcs_server=(7, None), raylet=(8, None))
    (tmp_path / "raylet.out").write_text("Agent process with name dashboard_agent exited, exit code 0.\n")
    assert dead_process(closely=True) is None


def test_the_store_of_another_machine_is_asked(node):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        node(address=address)
        assert dead_process() is None
    assert str(dead_process()) == "Ray's process gcs_server has died"


def test_the_driver_looks_now_and_then(monkeypatch):
    now, looks = [100.0], []
    monkeypatch.setattr(ray_processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_processes, "dead_process", lambda: looks.append(now[0]))
    watch = RayWatch()
    assert watch.check() == CHECK_INTERVAL_S
    now[0] += CHECK_INTERVAL_S / 2
    assert watch.check() == CHECK_INTERVAL_S / 2
    now[0] += CHECK_INTERVAL_S / 2
    watch.check()
    assert looks == [100.0, 100.0 + CHECK_INTERVAL_S]
    monkeypatch.setattr(
        ray_processes, "dead_process", lambda: ray_processes.DeadProcess("gcs_server", 7, None)
    )
    now[0] += CHECK_INTERVAL_S
    with pytest.raises(RayDied, match=r"gcs_server \(7\) has died"):
        watch.check()


STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
)
PARENT = f"""
import subprocess, sys, signal
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def raylet():
    """A process with a helper of its own, which heeds no request and survives it."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    helper = psutil.Process(int(parent.stdout.readline()))
    yield parent, helper
    for process in (parent, helper):
        with contextlib.suppress(psutil.Error):
            process.kill()
    parent.wait()
    parent.stdout.close()


@pytest.mark.parametrize("at_the_end", [False, True])
def test_what_a_dead_raylet_leaves_is_ended_and_nothing_else(node, raylet, monkeypatch, at_the_end):
    monkeypatch.setattr(ray_processes, "REMEMBERED", OwnProcesses())
    parent, helper = raylet
    # Of another cluster, and started by this process, too.
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        node(gcs_server=(2**22 + 1, -9), raylet=(parent.pid, None))
        if not at_the_end:
            ray_processes.REMEMBERED.look()
            parent.send_signal(signal.SIGKILL)
            parent.wait()
        assert helper.is_running()
        with pytest.raises(KeyError), leaving_nothing_of_a_dead_ray():
            raise KeyError("the run has failed")
        assert not helper.is_running()
        assert parent.poll() is not None
        assert other.poll() is None
        other.kill()


def test_a_cluster_that_lives_is_left_to_ray(node, raylet, monkeypatch):
    monkeypatch.setattr(ray_processes, "REMEMBERED", OwnProcesses())
    parent, helper = raylet
    node(gcs_server=(parent.pid, None), raylet=(parent.pid, None))
    ray_processes.REMEMBERED.look()
    with leaving_nothing_of_a_dead_ray():
        pass
    assert helper.is_running()
    assert parent.poll() is None
