"""A run on Ray that the limits of threads leave no room for is refused before Ray starts."""

import os
import resource

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.doctor import machine
from rlinf_async.ray_runtime.cluster import thread_room
from rlinf_async.ray_runtime.cluster.environment import choose_cluster
from rlinf_async.ray_runtime.cluster.thread_room import LEAST_THREADS, short_of_threads


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Set limits: the account's, with 40 threads in use, and a control group's, with 7."""
    monkeypatch.setattr(thread_room, "GROUPS", tmp_path)
    monkeypatch.setattr(thread_room, "GROUPS_OF_PROCESS", tmp_path / "cgroup")
    monkeypatch.setattr(thread_room, "_threads_of", lambda account: {1000: 40}[account])

    def put(
        account_limit=resource.RLIM_INFINITY,
        group_limit="max",
        account=1000,
        hard=20000,
        groups="0::/",
        limited="",
    ):
        limit_of = {resource.RLIMIT_NPROC: account_limit}
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit_of.get(kind, 20000), hard))
        monkeypatch.setattr(os, "getuid", lambda: account)
        (tmp_path / "cgroup").write_text(f"{groups}\n")
        (tmp_path / limited).mkdir(parents=True, exist_ok=True)
        (tmp_path / limited / "pids.max").write_text(f"{group_limit}\n")
        (tmp_path / limited / "pids.current").write_text("7\n")

    return put


def test_the_limit_of_an_account_is_named_with_the_threads_in_use_and_root_has_none(limits):
    limits(account_limit=39 + LEAST_THREADS)
    said = str(short_of_threads())
    assert f"ulimit -u allows {39 + LEAST_THREADS} processes and threads, and 40 run already" in said
    assert f"raise it: ulimit -u {39 + 5 * LEAST_THREADS}" in said
    limits(account_limit=40 + LEAST_THREADS)
    assert short_of_threads() is None
    limits(account_limit=39 + LEAST_THREADS, hard=39 + LEAST_THREADS)
    assert f"have it raised in /etc/security/limits.conf: {39 + 5 * LEAST_THREADS}" in str(short_of_threads())
    limits(account_limit=1, account=0)
    assert short_of_threads() is None


def test_the_limit_of_a_container_is_named(limits):
    limits(group_limit=6 + LEAST_THREADS)
    assert "the container allows" in str(short_of_threads())
    assert f"--pids-limit={6 + 5 * LEAST_THREADS}" in str(short_of_threads())
    limits(group_limit=7 + LEAST_THREADS)
    assert short_of_threads() is None
    limits()
    assert short_of_threads() is None


@pytest.mark.parametrize(
    ("groups", "limited", "name"),
    [
        ("0::/user.slice/session-3.scope", "user.slice/session-3.scope", "the control group session-3.scope"),
        ("0::/user.slice/session-3.scope", "user.slice", "the control group user.slice"),
        ("1:cpu:/a\n2:pids,misc:/job/step\n0::/", "pids/job", "the control group job"),
        ("8:pids:/docker/0123", "pids", "the container"),
    ],
    ids=["own", "above", "version 1", "version 1 in a container"],
)
def test_the_limit_of_a_control_group_is_found_in_both_versions(limits, groups, limited, name):
    limits(group_limit=6 + LEAST_THREADS, groups=groups, limited=limited)
    said = str(short_of_threads())
    assert said.startswith(f"{name} allows {6 + LEAST_THREADS} processes and threads, and 7 run already")
    option = "--pids-limit=" if name == "the container" else "raise its pids.max to "
    assert f"{option}{6 + 5 * LEAST_THREADS}" in said
    limits(group_limit=7 + LEAST_THREADS, groups=groups, limited=limited)
    assert short_of_threads() is None


def test_a_run_without_room_for_its_threads_does_not_begin_and_one_that_joins_does(limits):
    limits(account_limit=60)
    with pytest.raises(ValueError, match="ulimit -u allows 60 processes and threads"):
        choose_cluster(own=True, join=False, environ={})
    choose_cluster(own=True, join=True, environ={})
    assert machine.check_processes().status == "fail"
    limits()
    choose_cluster(own=True, join=False, environ={})
    assert machine.check_processes().status == "ok"


def test_the_threads_of_an_account_are_counted():
    assert thread_room._threads_of(os.getuid()) >= 1
    assert thread_room._threads_of(4_000_000) == 0


@pytest.mark.parametrize(("hard", "way"), [(20000, "raise it: ulimit -n"), (64, "have it raised in /etc/")])
def test_a_run_with_too_few_open_files_does_not_begin(monkeypatch, hard, way):
    allowed = {resource.RLIMIT_NOFILE: (64, hard)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: allowed.get(kind, (resource.RLIM_INFINITY,) * 2))
    with pytest.raises(ValueError, match=f"ulimit -n allows 64 open files.*{way}.* 4096"):
        choose_cluster(own=True, join=False, environ={})
    allowed[resource.RLIMIT_NOFILE] = 256, max(256, hard)
    choose_cluster(own=True, join=False, environ={})
