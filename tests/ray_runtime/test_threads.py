"""Threads of a worker process fork one after the other."""

import inspect
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError

import pytest

from rlinf_async.ray_runtime.threads import fork_in_turns


@pytest.fixture
def stock_fork(monkeypatch):
    """Whatever is put in the place of `os.fork` is taken back."""
    fork = inspect.unwrap(os.fork)
    monkeypatch.setattr(os, "fork", fork)
    return fork


class Meeting:
    """In the place of `os.fork`: can only be left at once by two threads that are in it together."""

    def __init__(self) -> None:
        self.together = 0
        self._barrier = Barrier(2)

    def __call__(self) -> int:
        try:
            self._barrier.wait(timeout=0.2)
        except BrokenBarrierError:
            return 1
        self.together += 1
        return 1


def fork_from_two_threads() -> list[int]:
    with ThreadPoolExecutor(2) as threads:
        return [future.result() for future in [threads.submit(lambda: os.fork()) for _ in range(2)]]


@pytest.mark.parametrize(("in_turns", "together"), [(False, 2), (True, 0)])
def test_two_threads_are_not_in_a_fork_together(monkeypatch, in_turns, together):
    meeting = Meeting()
    monkeypatch.setattr(os, "fork", meeting)
    if in_turns:
        fork_in_turns()
    assert fork_from_two_threads() == [1, 1]
    assert meeting.together == together


def fork_again(answer):
    child = multiprocessing.get_context("fork").Process(target=answer.put, args=("a child of a child",))
    child.start()
    child.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_may_fork_again(stock_fork):
    fork_in_turns()
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=fork_again, args=(answer,))
    child.start()
    assert answer.get() == "a child of a child"
    child.join()
    assert child.exitcode == 0


def test_asking_twice_is_asking_once(stock_fork):
    fork_in_turns()
    once = os.fork
    fork_in_turns()
    assert os.fork is once
    assert once is not stock_fork
