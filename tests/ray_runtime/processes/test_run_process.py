"""A worker that takes part in a run, with a clock that the test gives."""

import asyncio
import gc
import os
import time
import weakref
from types import SimpleNamespace

import pytest

from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.ray_runtime.processes import run_process
from rlinf_async.ray_runtime.processes.run_process import (
    ROUND_TRIPS,
    RunProcess,
    exempt_present_objects,
    machine,
)


def clock_of(name, ahead):
    """An actor on another machine, `ahead` seconds of ours."""
    calls = []

    async def remote():
        calls.append(time.monotonic())
        return name, time.monotonic() + ahead

    return SimpleNamespace(read_clock=SimpleNamespace(remote=remote), calls=calls)


def joined(run_dir, *, clock=None):
    worker = RunProcess()
    asyncio.run(worker.join_run("env worker 3", str(run_dir), clock=clock))
    return worker


def test_a_worker_writes_its_spans_and_answers_what_it_does(tmp_path):
    worker = joined(tmp_path)
    with worker.spans.span("forward", shards=[1, 2, 3]):
        said = asyncio.run(worker.doing())
    assert (said["machine"], said["pid"], said["ended"]) == (machine(), os.getpid(), 0)
    assert (said["open"][0]["kind"], said["open"][0]["shards"]) == ("forward", 3)
    assert [span["process"] for span in read_spans(tmp_path / "trace")] == ["env worker 3"]


def test_a_worker_that_has_not_joined_records_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    worker = joined(tmp_path / "run")
    fresh = RunProcess()
    with fresh.spans.span("step"):
        pass
    assert fresh.spans is not worker.spans
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_spans_of_another_machine_are_put_on_the_clock_of_the_run(tmp_path):
    clock = clock_of("elsewhere", 5000.0)
    worker = joined(tmp_path, clock=clock)
    assert len(clock.calls) == ROUND_TRIPS
    before = time.monotonic()
    with worker.spans.span("step"):
        pass
    (span,) = read_spans(tmp_path / "trace")
    assert span["began"] == pytest.approx(before + 5000.0, abs=1.0)


def test_on_one_machine_the_clock_is_the_same_and_nothing_is_added(tmp_path):
    worker = joined(tmp_path, clock=clock_of(machine(), 5000.0))
    before = time.monotonic()
    with worker.spans.span("step"):
        pass
    (span,) = read_spans(tmp_path / "trace")
    assert before - 0.001 <= span["began"] <= time.monotonic()


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """Before, as other tests have workers join runs, and after."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()


class Node:
    """Refers to itself: only a search for garbage finds that nobody else does."""

    def __init__(self):
        self.self = self


def dropped():
    """A node that nobody holds."""
    return weakref.ref(Node())


def test_a_process_that_joins_a_run_is_searched_no_more(tmp_path):
    assert gc.get_freeze_count() == 0
    held = Node()
    asyncio.run(RunProcess().join_run("env worker 0", str(tmp_path)))
    assert gc.get_freeze_count() > 10_000
    assert not any(each is held for each in gc.get_objects())


def test_garbage_is_not_kept_and_what_comes_later_is_searched():
    gc.disable()
    try:
        before = dropped()
        exempt_present_objects()
        after = dropped()
        assert before() is None
        assert after() is not None
        gc.collect()
        assert after() is None
    finally:
        gc.enable()


def test_what_an_earlier_run_has_left_is_found_by_the_next():
    left = Node()
    gone = weakref.ref(left)
    exempt_present_objects()
    del left
    gc.collect()
    assert gone() is not None
    exempt_present_objects()
    assert gone() is None


@pytest.mark.parametrize(("joined", "ends"), [(2, 0), (1, 1), (None, 1)])
def test_a_process_that_has_not_joined_in_the_place_of_the_dead_one_ends_before_its_loop(
    joined, ends, tmp_path, monkeypatch
):
    """Ray has started it between two calls: nothing is built in it, and all that it says would be ignored."""
    ended, looped = [], []
    monkeypatch.setattr(run_process, "end_this_process", lambda: ended.append(len(looped)))

    class Looping(RunProcess):
        async def loop(self, first, second):
            looped.append((first, second))
            return "over"

    process = Looping()
    if joined is not None:
        asyncio.run(process.join_run("env worker 0", str(tmp_path), generation=joined))
    assert asyncio.run(process.go_on_as(2, "loop", "settings", "requests")) == "over"
    assert looped == [("settings", "requests")]
    assert ended == [0] * ends  # before the loop, which a process that has ended does not reach
