"""Threads of a process that start processes together: they fork in turns, and keep their pipes apart."""

import inspect
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from rlinf_async.ray_runtime.processes.forking import fork_apart

ROOT = Path(__file__).parents[3]
AGAIN = """
import multiprocessing
from rlinf_async.ray_runtime.processes.forking import fork_apart

FORK = multiprocessing.get_context("fork")


def fork_again(answer):
    child = FORK.Process(target=answer.put, args=("a child of a child",))
    child.start()
    child.join()


fork_apart()
answer = FORK.SimpleQueue()
child = FORK.Process(target=fork_again, args=(answer,))
child.start()
print(answer.get())
child.join()
"""


@pytest.fixture(autouse=True)
def stock(monkeypatch):
    """What is put in the place of functions is taken back."""
    monkeypatch.setattr(os, "fork", inspect.unwrap(os.fork))
    monkeypatch.setattr(connection, "Pipe", inspect.unwrap(connection.Pipe))


def said(*arguments):
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


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


@pytest.mark.parametrize("how", ["stock", "apart"])
def test_the_death_of_a_simulator_is_noticed_though_another_was_started_meanwhile(how):
    found = json.loads(said("-m", "tests.ray_runtime.processes.forked_simulators", how))
    assert found == {
        "death is noticed": how == "apart",
        "the other answers": True,
        "everybody's pipe goes to all": True,
    }


def test_a_child_may_fork_again():
    assert said("-c", AGAIN) == "a child of a child\n"


def test_asking_twice_is_asking_once():
    fork_apart()
    once = os.fork, connection.Pipe
    fork_apart()
    assert (os.fork, connection.Pipe) == once
