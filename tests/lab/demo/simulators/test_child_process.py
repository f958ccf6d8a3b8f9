"""Processes that die or hang are named, and nobody waits for them."""

import os
import signal
import threading

import pytest

from rlinf_async.core.failures import SimulatorDied
from rlinf_async.lab.demo.simulators.child_process import ChildProcess


class Target:
    """What the child does."""

    def pid(self):
        return os.getpid()

    def end(self, status):
        os._exit(status)

    def kill(self, signal_number):
        os.kill(os.getpid(), signal_number)

    def hang_here(self, pipe):
        with open(pipe, "w"):
            threading.Event().wait()

    def close(self):
        pass


class Stubborn(Target):
    def close(self):
        threading.Event().wait()


@pytest.fixture
def child():
    made = ChildProcess(f"{__name__}:Target")
    made.submit("pid")
    assert made.result() == made.pid
    assert not made.busy
    yield made
    made.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("kill", signal.SIGKILL), r"was killed by signal 9 \(SIGKILL\)$"),
        (("kill", signal.SIGSEGV), r"was killed by signal 11 \(SIGSEGV\); it stood at:\n(.|\n)*in kill"),
        (("end", 3), "has ended with status 3$"),
    ],
)
def test_a_death_is_named_with_its_signal_or_status(child, call, message):
    child.submit(*call)
    with pytest.raises(SimulatorDied, match=rf"^simulator process {child.pid} {message}"):
        child.result()


def test_who_died_while_nobody_asked_is_found_by_the_next_call(child):
    os.kill(child.pid, signal.SIGKILL)
    child._process.wait()
    with pytest.raises(SimulatorDied, match="SIGKILL"):
        child.submit("pid")


@pytest.fixture
def hang(child, tmp_path):
    """A thread that waits for an answer that never comes, and what it is told; the child hangs already."""
    told, pipe = [], tmp_path / "hangs"
    os.mkfifo(pipe)
    child.submit("hang_here", str(pipe))

    def wait():
        with pytest.raises(SimulatorDied) as raised:
            child.result()
        told.append(str(raised.value))

    thread = threading.Thread(target=wait)
    thread.start()
    with pipe.open():  # opened at both ends
        yield thread, told


def test_a_child_that_hangs_is_ended_and_says_where_it_stood(child, hang):
    thread, told = hang
    assert child.busy
    child.abort("no answer for 3 s")
    thread.join()
    assert told[0].startswith(f"simulator process {child.pid} was ended: no answer for 3 s; it stood at:")
    assert "in hang_here" in told[0]


def test_a_child_that_is_stopped_is_ended_all_the_same(child, hang, monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.demo.simulators.child_process.DUMP_TIMEOUT_S", 0.1)
    thread, told = hang
    os.kill(child.pid, signal.SIGSTOP)
    child.abort("no answer for 3 s")
    thread.join()
    assert told == [f"simulator process {child.pid} was ended: no answer for 3 s"]


def test_closing_waits_for_a_child_that_does_not_end_only_for_so_long(monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.demo.simulators.child_process.END_TIMEOUT_S", 0.1)
    child = ChildProcess(f"{__name__}:Stubborn")
    child.submit("pid")
    child.result()
    child.close()
    assert child._process.returncode == -signal.SIGKILL
