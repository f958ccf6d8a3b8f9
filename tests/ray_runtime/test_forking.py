"""Threads of a process that start processes together: they fork in turns, and keep their pipes apart."""

import inspect
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from threading import Barrier, BrokenBarrierError

import pytest

from rlinf_async.ray_runtime.forking import fork_apart

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def stock(monkeypatch):
    """What is put in the place of functions is taken back."""
    monkeypatch.setattr(os, "fork", inspect.unwrap(os.fork))
    monkeypatch.setattr(connection, "Pipe", inspect.unwrap(connection.Pipe))


@pytest.fixture(params=[False, True], ids=["stock", "apart"])
def apart(request):
    return request.param


@pytest.fixture
def shards(apart):
    """Two threads that start simulators."""
    options = {"initializer": fork_apart} if apart else {}
    with ThreadPoolExecutor(1, **options) as one, ThreadPoolExecutor(1, **options) as other:
        for thread in (one, other):
            thread.submit(int).result()
        yield one, other


class Meeting:
    """In the place of `os.fork`: counts those that were in it together with another."""

    def __init__(self):
        self.together = 0
        self._barrier = Barrier(2)

    def __call__(self):
        try:
            self._barrier.wait(timeout=0.2)
            self.together += 1
        except BrokenBarrierError:
            pass
        return 1


@pytest.mark.parametrize(("in_turns", "together"), [(False, 2), (True, 0)])
def test_two_threads_are_not_in_a_fork_together(monkeypatch, in_turns, together):
    meeting = Meeting()
    monkeypatch.setattr(os, "fork", meeting)
    if in_turns:
        fork_apart()
    with ThreadPoolExecutor(2) as threads:
        forks = [threads.submit(lambda: os.fork()) for _ in range(2)]
        assert [fork.result() for fork in forks] == [1, 1]
    assert meeting.together == together


def answer_once(end):
    """What a simulator does: it waits for a word of its parent, and answers."""
    end.send(end.recv())


def start(ends):
    child = FORK.Process(target=answer_once, args=(ends[1],), daemon=True)
    child.start()
    return child


def answers(end):
    end.send("a word")
    return end.poll(10) and end.recv() == "a word"


def test_the_death_of_a_simulator_is_noticed_though_another_was_started_meanwhile(shards, apart):
    one, other = shards
    ends = one.submit(FORK.Pipe).result()
    others = other.submit(FORK.Pipe).result()
    second = other.submit(start, others).result()  # while the first thread has not closed its child's end
    first = one.submit(start, ends).result()
    ends[1].close()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    assert ends[0].poll(5 if apart else 0.2) == apart
    if apart:
        with pytest.raises(EOFError):
            ends[0].recv()
    assert answers(others[0]), "a simulator has the pipe of its own thread"
    second.join()


def test_a_pipe_of_a_thread_that_is_not_apart_goes_to_every_child(shards):
    one, _ = shards
    ends = FORK.Pipe()
    child = one.submit(start, ends).result()
    assert answers(ends[0])
    child.join()


def fork_again(answer):
    child = FORK.Process(target=answer.put, args=("a child of a child",))
    child.start()
    child.join()


def test_a_child_may_fork_again():
    fork_apart()
    answer = FORK.SimpleQueue()
    child = FORK.Process(target=fork_again, args=(answer,))
    child.start()
    assert answer.get() == "a child of a child"
    child.join()
    assert child.exitcode == 0


def test_asking_twice_is_asking_once():
    fork_apart()
    once = os.fork, connection.Pipe
    fork_apart()
    assert (os.fork, connection.Pipe) == once
