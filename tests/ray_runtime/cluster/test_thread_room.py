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
    """Set the account's limit with 40 threads in use, and the container's with 7, for an account or root."""
    monkeypatch.setattr(thread_room, "GROUP_LIMIT", tmp_path / "pids.max")
    monkeypatch.setattr(thread_room, "GROUP_THREADS", tmp_path / "pids.current")
    monkeypatch.setattr(thread_room, "_threads_of", lambda account: {1000: 40}[account])

    def put(account_limit=resource.RLIM_INFINITY, group_limit="max", account=1000, hard=20000):
        limit_of = {resource.RLIMIT_NPROC: account_limit}
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit_of.get(kind, 20000), hard))
        monkeypatch.setattr(os, "getuid", lambda: account)
        (tmp_path / "pids.max").write_text(f"{group_limit}\n")
        (tmp_path / "pids.current").write_text("7\n")

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
