"""Worker processes with variables of their own start without loading Ray twice, and Ray itself without the
packages of its dashboard."""

import json
import os
import subprocess
import sys
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray._private import ray_constants, services, utils
from ray._private.node import Node
from ray._raylet import (
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    wait_for_persisted_port,
)
from ray.experimental import internal_kv

from rlinf_async.ray_runtime.cluster import idle_agent, quick_start, start_worker
from rlinf_async.ray_runtime.cluster.quick_start import CHECK, SCRIPT_NAME, starting_quickly
from rlinf_async.ray_runtime.cluster.start_worker import RAYS_NAME, TEMPLATE_VARIABLE, command, rays_script
from rlinf_async.ray_runtime.cluster.template import SWITCH_VARIABLE, Shared, can_be_forked

WORDS = ["worker.py", "--node-id=7"]


def arguments(language="PYTHON", **context):
    return [*WORDS, f"--language={language}", f"--serialized-runtime-env-context={json.dumps(context)}"]


def rays_context(**fields):
    """The context as Ray writes it."""
    from ray._private.runtime_env.context import RuntimeEnvContext

    return json.loads(RuntimeEnvContext(**fields).serialize())


def test_variables_and_interpreter_of_rays_own_context_are_used(monkeypatch):
    monkeypatch.delenv("BASH_ENV", raising=False)
    context = rays_context(env_vars={"RANK": "0"}, py_executable=sys.executable)
    assert command(arguments(**context)) == ({"RANK": "0"}, [sys.executable, *WORDS])
    assert command(arguments()) == ({}, [sys.executable, *WORDS])
    assert command([*WORDS, "--language=PYTHON"]) == ({}, [sys.executable, *WORDS])


@pytest.mark.parametrize(
    "given",
    [
        WORDS,
        [*WORDS, "--language=JAVA"],
        arguments("JAVA"),
        arguments(command_prefix=["conda", "activate", "other"]),
        arguments(override_worker_entrypoint="/other/worker.py"),
        arguments(a_field_of_a_later_ray="1"),
        arguments(env_vars={"PATH": "/bin:${PATH}"}),
        arguments(py_executable="nsys profile python"),
        arguments(py_executable="/no/python"),
    ],
)
def test_all_else_is_left_to_ray(given):
    assert command(given) is None


def test_a_shell_that_has_a_file_to_run_first_is_left_to_ray(monkeypatch):
    monkeypatch.setenv("BASH_ENV", "/etc/first")
    assert command(arguments()) is None


@pytest.mark.parametrize("value", ["plain", "of ${HOME}"])
def test_the_worker_gets_what_rays_script_gives_it(value, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys; print(sys.argv[1:], os.environ['GIVEN'], 'ray' in sys.modules)")
    words = arguments(**rays_context(env_vars={"GIVEN": value}, py_executable=sys.executable))[1:]
    said = [
        subprocess.run(
            [sys.executable, script, str(worker), *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HOME": "/home/of/a user"},
        ).stdout
        for script in (start_worker.__file__, rays_script())
    ]
    assert said[0] == said[1] != ""


def test_only_inside_the_block_ray_starts_workers_by_our_script():
    before = getattr(ray_constants, SCRIPT_NAME), getattr(utils, CHECK)
    with starting_quickly():
        script = Path("/rays/folder", getattr(ray_constants, SCRIPT_NAME))
        assert script.samefile(start_worker.__file__)
        # By its name Ray knows its own script, and leaves it out for a worker without variables of its own.
        assert script.name != before[0] == RAYS_NAME
    assert (getattr(ray_constants, SCRIPT_NAME), getattr(utils, CHECK)) == before


def test_a_dashboard_without_its_packages_is_noticed_as_ever(monkeypatch):
    missing = ImportError("no aiohttp")
    monkeypatch.setattr(utils, CHECK, lambda: missing)
    with starting_quickly():
        assert utils.get_dashboard_dependency_error() is None
    monkeypatch.setattr(quick_start, "find_spec", lambda name: None)
    with starting_quickly():
        assert utils.get_dashboard_dependency_error() is missing


def helpers():
    return services.start_api_server, Node.start_monitor, Node.start_log_monitor, getattr(utils, CHECK)


def test_a_cluster_without_a_dashboard_starts_no_helper_that_only_a_dashboard_or_a_reader_needs(monkeypatch):
    stored = {}

    class Store:
        def __init__(self, address, cluster_id):
            assert (address, cluster_id) == ("127.0.0.1:1", "7")

        def internal_kv_put(self, key, value, overwrite, namespace):
            stored[key] = value

    monkeypatch.setattr(ray._raylet, "GcsClient", Store)
    monkeypatch.setattr(internal_kv, "_initialize_internal_kv", lambda client: None)
    before, before_monitor, before_start = helpers(), Node.start_monitor, services.start_ray_process
    with starting_quickly(has_dashboard=False, reads_logs=False):
        assert services.start_api_server(False, False, "host", "127.0.0.1:1", "7", "ip", port=1) == ("", None)
        assert Node.start_monitor(None) is Node.start_log_monitor(None) is None
        assert isinstance(utils.get_dashboard_dependency_error(), ImportError)
    assert helpers() == before
    # Ray would wait for an address, and is refused a connection to this one.
    assert stored == {ray_constants.DASHBOARD_ADDRESS.encode(): quick_start.NO_SERVER}
    with starting_quickly(has_dashboard=False):
        assert Node.start_monitor is before_monitor  # it prints what Ray cannot place
        assert services.start_ray_process is not before_start
    with monkeypatch.context() as old_kernel:
        old_kernel.setattr(os, "pidfd_open", lambda pid: os.close(-1))
        with starting_quickly(has_dashboard=False):
            assert services.start_ray_process is before_start
    with starting_quickly(reads_logs=False):
        assert helpers()[:2] == before[:2]
        assert Node.start_log_monitor(None) is None
    with starting_quickly():
        assert helpers()[:3] == before[:3]


def test_the_raylet_of_a_cluster_without_a_dashboard_has_an_agent_that_only_ends_with_it(
    monkeypatch, tmp_path
):
    commands = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, *args: commands.append(command))
    agent = [sys.executable, "-u", str(Path(services.RAY_PATH, "dashboard", "agent.py"))]
    agent += [f"--session-dir={tmp_path}", f"--node-id={NODE}", "--minimal"]
    raylet = [
        "raylet",
        f"--dashboard_agent_command={subprocess.list2cmdline(agent)}",
        "--runtime_env=main.py",
    ]
    with starting_quickly(has_dashboard=False):
        services.start_ray_process(raylet)
    with starting_quickly():
        services.start_ray_process(raylet)
    [found, unchanged] = commands
    assert (unchanged, found[::2]) == (raylet, raylet[::2])
    words = found[1].partition("=")[2].split()
    assert words == [*agent[:2], idle_agent.__file__, *agent[3:]]
    with subprocess.Popen(["sleep", "600"]) as process:
        started = subprocess.Popen(words, env={**os.environ, "RAY_RAYLET_PID": str(process.pid)})
        ports = [wait_for_persisted_port(str(tmp_path), NODE, name, timeout_ms=60_000) for name in PORTS]
        assert (ports, started.poll()) == ([-1, -1, -1], None)
        process.kill()
    assert started.wait(60) == 0


NODE = "07" * 28
PORTS = (METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME)


def test_the_server_of_the_dashboard_takes_the_arguments_that_are_read():
    given = list(signature(services.start_api_server).parameters)
    assert tuple(given[: len(quick_start.SERVERS_ARGUMENTS)]) == quick_start.SERVERS_ARGUMENTS


@pytest.mark.skipif(not can_be_forked(), reason="this Ray is not forked")
def test_a_raylet_that_is_started_again_gets_a_template_of_its_own(monkeypatch):
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    named = []

    def start(process):
        named.append(os.environ[TEMPLATE_VARIABLE])
        return SimpleNamespace(process=process)

    monkeypatch.setattr(services, "start_raylet", start)
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(sleeping) as first,
        subprocess.Popen(sleeping) as second,
        starting_quickly(Shared()),
    ):
        for process in (first, second):
            services.start_raylet(process)
            process.kill()
    assert len(set(named)) == 2
    assert TEMPLATE_VARIABLE not in os.environ


def test_packages_of_the_dashboard_are_those_that_ray_imports():
    import ray.dashboard

    source = Path(next(iter(ray.dashboard.__path__)), "optional_deps.py").read_text()
    assert [name for name in quick_start.DASHBOARDS_PACKAGES if f"import {name}" not in source] == []


def test_a_ray_without_these_names_starts_as_ever(monkeypatch):
    monkeypatch.delattr(ray_constants, SCRIPT_NAME)
    monkeypatch.delattr(utils, CHECK)
    with starting_quickly():
        assert not hasattr(utils, CHECK)
        assert not hasattr(ray_constants, SCRIPT_NAME)
