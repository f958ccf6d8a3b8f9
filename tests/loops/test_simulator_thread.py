"""What fails or hangs in the thread of a shard is said, and as far as it can be, ended."""

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import ShardFailure, SimulatorDied, StuckThread, frames_of, in_words, words_of
from rlinf_async.loops import simulator_thread
from rlinf_async.loops.foreign import DaemonThread
from rlinf_async.loops.simulator_thread import SimulatorThread
from tests.hostile_errors import RAISED

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def thread():
    made = DaemonThread("shard-3")
    yield made
    made.shutdown(wait=False)


def simulators(thread, *, abort=simulator_thread.nothing_to_abort, **advanced):
    return SimulatorThread(3, thread, AdvancedConfig(**advanced), abort=abort)


def raising(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize("call", ["build", "reset", "step", "finish"])
def test_what_is_called_runs_in_the_thread_and_gives_its_result(thread, call):
    found = []
    asyncio.run(getattr(simulators(thread), call)(lambda: found.append(threading.current_thread().name)))
    assert found == ["shard-3"]


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (KeyError("door"), "env failed"),
        (SimulatorDied("process 7 was killed"), "simulator died"),
        (EOFError(), "simulator died"),
        (BrokenPipeError(), "simulator died"),
        (ConnectionResetError(), "simulator died"),
    ],
)
@pytest.mark.parametrize("call", ["build", "reset", "step", "finish"])
def test_an_error_is_the_shards_and_known_by_its_kind(thread, call, error, what):
    with pytest.raises(ShardFailure, match="shard 3") as raised:
        asyncio.run(getattr(simulators(thread), call)(raising(error)))
    assert in_words(raised.value.error) == words_of(error)
    assert (raised.value.what, raised.value.reason) == (what, "env failed")


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("call", ["build", "reset", "step", "finish"])
def test_whatever_is_raised_is_the_shards_and_can_be_told_packed_and_raised_anywhere(thread, call, raised):
    """An exception that means something to an event loop or a future, or breaks whoever looks at it."""
    mine = simulators(thread, start_s=5.0, step_s=5.0, reset_s=5.0)
    with pytest.raises(ShardFailure, match="shard 3") as failed:
        asyncio.run(getattr(mine, call)(raised.fail))
    assert not mine.stuck
    error = pickle.loads(pickle.dumps(failed.value.error))
    assert in_words(error) == in_words(failed.value.error)
    assert in_words(error).startswith(raised.kind)
    assert failed.value.kind == raised.kind
    assert frames_of(failed.value.error)
    assert failed.value.__context__ is None


def test_what_an_error_refers_to_is_let_go(thread):
    class Scene:
        """A simulator that is large."""

    def fail():
        scene = Scene()
        seen.append(weakref.ref(scene))
        raise KeyError(scene)

    seen = []
    with pytest.raises(ShardFailure) as failed:
        asyncio.run(simulators(thread).step(fail))
    thread.submit(lambda: None).result()
    gc.collect()
    assert seen[0]() is None
    assert failed.value.kind == "KeyError"


def test_a_failure_that_is_ours_already_stays_what_it_is(thread):
    mine = ShardFailure("environment 2 gives no rewards", what="not finite")
    with pytest.raises(ShardFailure) as failed:
        asyncio.run(simulators(thread).step(raising(mine)))
    assert failed.value is mine


FORKS = """
import asyncio, os
from rlinf_async.loops.foreign import DaemonThread
from tests.loops.test_simulator_thread import raising, simulators

children = []

def step(and_then=lambda: None):
    children.append(os.fork())
    if not children[-1]:
        and_then()
    return len(children)

mine = simulators(DaemonThread("shard-3"))
assert asyncio.run(mine.step(step)) == 1
assert asyncio.run(mine.step(lambda: step(raising(KeyError("in the child"))))) == 2
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_what_the_environments_fork_does_not_go_on_with_our_work():
    """The copy would answer in the place of its parent, and live on."""
    # In a process of its own: where tests have left a process group of torch's, the copy waits for ever when
    # Python lets go of what the threads of its parent had.
    command = [sys.executable, "-c", FORKS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert (ended.stdout, ended.returncode) == ("[0, 1]\n", 0), ended.stderr


@pytest.mark.parametrize("raised", RAISED)
def test_who_cannot_be_ended_because_ending_him_fails_is_stuck(thread, held, raised):
    mine = simulators(thread, abort=lambda reason: raised.fail(), step_s=0.05)
    with pytest.raises(StuckThread):
        asyncio.run(mine.step(held.wait))


def hang_here(event):
    event.wait()


@pytest.mark.parametrize(
    ("call", "key"),
    [("build", "start_s"), ("reset", "reset_s"), ("finish", "reset_s"), ("step", "step_s")],
)
def test_a_thread_that_nothing_can_end_is_named_with_its_stack(thread, held, call, key, monkeypatch):
    monkeypatch.setattr(simulator_thread, "GRACE_S", 3600.0)  # for what was ended, and nothing was
    mine = simulators(thread, **{key: 0.05})
    with pytest.raises(
        StuckThread, match=rf"shard 3 have not answered for 0.05 s \(async.advanced.{key}\)"
    ) as raised:
        asyncio.run(getattr(mine, call)(lambda: hang_here(held)))
    what, *stack = str(raised.value).splitlines()
    assert "and cannot be ended from outside; their thread is in hang_here, line " in what
    assert all(line.startswith("  ") for line in stack)
    assert any(line.endswith("in hang_here") for line in stack)
    assert str(raised.value).strip() == str(raised.value)
    assert mine.stuck


def test_a_thread_that_has_not_come_to_a_call_stands_at_an_unknown_line(thread, held):
    thread.submit(held.wait)
    with pytest.raises(StuckThread) as raised:
        asyncio.run(simulators(thread, step_s=0.05).step(list))
    assert str(raised.value).endswith("; their thread is at an unknown line")


def test_simulators_with_processes_are_ended_when_they_hang(thread, held):
    died, reasons = SimulatorDied("process 7 was ended"), []

    def abort(reason):
        reasons.append(reason)
        held.set()
        return True

    def step():
        held.wait()
        raise died

    mine = simulators(thread, abort=abort, step_s=0.05)
    with pytest.raises(ShardFailure) as raised:
        asyncio.run(mine.step(step))
    assert raised.value.what == "simulator hangs"
    assert in_words(raised.value.error) == "SimulatorDied: process 7 was ended"
    assert reasons == ["the environments of shard 3 have not answered for 0.05 s (async.advanced.step_s)"]
    assert not mine.stuck


def test_what_does_not_notice_that_it_was_ended_is_stuck(thread, held, monkeypatch):
    monkeypatch.setattr(simulator_thread, "GRACE_S", 0.05)
    mine = simulators(thread, abort=lambda reason: True, step_s=0.05)
    with pytest.raises(StuckThread):
        asyncio.run(mine.step(held.wait))


@pytest.mark.parametrize(("call", "other"), [("step", "reset"), ("reset", "step")])
@pytest.mark.real_time
async def test_a_step_or_a_reset_may_take_many_times_as_long_as_the_longest_before(
    thread, monkeypatch, call, other
):
    limits = []
    monkeypatch.setattr(AdvancedConfig, f"{call}_limit", lambda self, longest: limits.append(longest) or 60.0)
    mine, gate = simulators(thread), threading.Event()
    timed = getattr(mine, call)
    await timed(lambda: gate.wait(0.05))
    gate.set()
    await timed(lambda: gate.wait(60))
    await mine.build(gate.wait)
    await getattr(mine, other)(gate.wait)
    await timed(gate.wait)
    assert limits[0] == 0
    assert limits[1] >= 0.05
    assert limits[2] == limits[1]


@pytest.mark.real_time
async def test_work_that_nobody_waits_for_any_more_is_not_begun(thread, held):
    begun = []
    first = asyncio.create_task(simulators(thread).build(held.wait))
    second = asyncio.create_task(simulators(thread).build(lambda: begun.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    held.set()
    await first
    thread.submit(lambda: None).result()
    assert begun == []


def test_a_daemon_thread_works_in_turn_and_ends_when_it_is_told_to():
    thread = DaemonThread("worker")
    results = [thread.submit(divmod, number, 2) for number in range(3)]
    failing = thread.submit(divmod, 1, 0)
    (worker,) = [one for one in threading.enumerate() if one.name == "worker"]
    assert worker.daemon
    thread.shutdown()
    assert [result.result() for result in results] == [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(ZeroDivisionError):
        failing.result()
    assert not worker.is_alive()


def test_who_ends_a_daemon_thread_waits_for_what_it_was_given():
    thread, done, gate = DaemonThread("worker"), [], threading.Event()
    thread.submit(lambda: done.append(gate.wait(0.05)))
    number = thread.submit(int, "11", base=2)
    thread.shutdown()
    assert done == [False]
    assert number.result() == 3
