"""The end of a run on Ray: what an error of Ray's says of it, and what is done about it, in order."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import DeadlineError, PeerError, Terminated
from rlinf_async.observe.ending import RunFailed
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.state import RunState
from rlinf_async.ray_runtime.cluster.ray_processes import DeadProcess, RayDied
from rlinf_async.ray_runtime.cluster.starting import RayNotJoined, RayNotStarted
from rlinf_async.ray_runtime.driver import endings as module
from rlinf_async.ray_runtime.driver.endings import EndingInOrder, is_echo, ray_ending_of

ACTOR = bytes(range(16))
NAMES = {ACTOR.hex(): "learner rank 0"}
SILENT = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force."
)


def died(message, **facts):
    return ray.exceptions.ActorDiedError(
        ActorDiedErrorContext(
            error_message=message, actor_id=ACTOR, pid=4321, node_ip_address="10.0.0.7", **facts
        )
    )


def failed(cause):
    """As `ray.get` raises it: also of the type of its cause, where Ray can make that."""
    trace = 'Traceback (most recent call last):\n  File "learner.py", line 7, in learn\n'
    error = ray.exceptions.RayTaskError(
        "learn", trace, cause, pid=4321, ip="10.0.0.7", actor_repr="<Learner>", actor_id=ACTOR.hex()
    )
    return error.as_instanceof_cause()


@pytest.fixture(autouse=True)
def alive(monkeypatch):
    """Ray's own processes, until a test says that one has died."""
    monkeypatch.setattr(module, "dead_process", lambda **_: None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (died(SILENT), ("has died without an error message", "dmesg")),
        (died("Task was killed due to the node running low on memory."), ("for lack of memory",)),
        (
            died("The actor died because its node has died. Node Id: 3a93. " + SILENT),
            ("was on a node that is lost", "look at that node"),
        ),
        (died("... Worker exit type: USER_ERROR Worker exit detail: Exit 70."), ("has ended: Exit 70.",)),
        (failed(ZeroDivisionError("by zero")), ("has met ZeroDivisionError: by zero",)),
        (failed(OSError(28, "No space left on device", "/run/x")), ("No space left on device at /run/x",)),
        (failed(ValueError("first\nsecond")), ("ValueError: first;",)),
        (failed(SystemExit(3)), ("SystemExit(3)",)),
        (failed(failed(TypeError("inner"))), ("TypeError: inner",)),
    ],
)
def test_the_process_its_place_the_reason_and_a_remedy_are_named(error, words):
    ending = ray_ending_of(error, names=NAMES, again="start it again with resume=auto")
    assert ending.process == "learner rank 0"
    assert str(ending).startswith("learner rank 0 (4321 on 10.0.0.7) ")
    assert all(word in str(ending) for word in words)
    assert str(ending).endswith("start it again with resume=auto")
    assert len(str(ending).splitlines()) == 1
    assert (ending.how, ending.status) == ("failed", 1)


def test_what_a_wrapper_of_the_framework_or_python_has_put_into_words_is_named_with_its_place():
    quoted = (
        'Traceback (most recent call last):\n  File "sim.py", line 3, in licence\nSystemExit: it is over\n'
    )
    wrapped = f"SystemExit caught in EnvWorker's function init_worker, traceback is below: {quoted}"
    passed = quoted.replace("SystemExit: it is over", "StopIteration")
    chained = f"{passed}\nThe above exception was the direct cause of the following exception:\n\nray::f()\n"
    stopped = ray.exceptions.RayTaskError("play", chained, RuntimeError("coroutine raised StopIteration"))
    for error, words in (
        (failed(RuntimeError(wrapped)), "SystemExit: it is over, raised in licence, line 3 of sim.py; fix"),
        (
            stopped,
            "coroutine raised StopIteration (StopIteration, raised in licence, line 3 of sim.py); fix",
        ),
    ):
        assert words in str(ray_ending_of(error, names=NAMES))


def test_a_revival_that_gives_up_says_why():
    error = RuntimeError("inference rank 1 has died 6 times within 600 s")
    error.__cause__ = died(SILENT)
    ending = ray_ending_of(error, names={ACTOR.hex(): "inference rank 1"})
    assert str(ending).startswith("inference rank 1 (4321 on 10.0.0.7) has died 6 times within 600 s; ")


def test_a_process_that_ends_itself_before_the_first_step_is_named_once_and_no_network_is_blamed():
    error = RuntimeError("env worker 0 has died before a step was trained")
    error.__cause__ = ray.exceptions.ActorUnavailableError("Socket closed", ACTOR)
    said = str(ray_ending_of(error, names={ACTOR.hex(): "env worker 0"}))
    assert said.startswith("env worker 0 has died before a step was trained; code of its packages may have")
    assert "network" not in said


def test_a_process_that_dies_before_it_has_a_name_is_called_by_its_class_and_may_have_ended_itself():
    said = str(ray_ending_of(died(f"The actor died.\n\tclass_name: LearnerWorker\n{SILENT}")))
    assert said.startswith("a LearnerWorker (4321 on 10.0.0.7) has died without an error message")
    assert "os._exit" in said


def test_a_process_that_ends_itself_while_it_is_built_is_not_blamed_on_the_network_alone():
    error = ray.exceptions.ActorUnavailableError("Socket closed", ACTOR)
    said = str(ray_ending_of(error, names={ACTOR.hex(): "env worker 0"}))
    assert said.startswith("env worker 0 has ended, or cannot be reached any more")
    assert "os._exit" in said
    assert "if it is on another node, at that node and at the network" in said


@pytest.mark.parametrize(
    "error",
    [
        died(SILENT),
        ray.exceptions.ActorUnavailableError("recvmsg:Connection reset by peer", ACTOR),
        ray.exceptions.RaySystemError("no"),
        ray.exceptions.LocalRayletDiedError(),
        ConnectionError("GCS"),
        DeadlineError("waited 600 s"),
        failed(ray.exceptions.RaySystemError("no")),
    ],
)
@pytest.mark.parametrize("helper", [None, "RuntimeEnvAgent"])
def test_a_dead_raylet_is_to_blame_for_whatever_ray_says(monkeypatch, error, helper):
    dead = DeadProcess("raylet", 99, Path("/tmp/ray/logs"), helper)
    monkeypatch.setattr(module, "dead_process", lambda closely: dead)
    ending = ray_ending_of(error, names=NAMES)
    assert str(ending).startswith("Ray's process raylet (99) has died")
    assert ("its helper RuntimeEnvAgent" in str(ending)) == (helper is not None)
    assert "/tmp/ray/logs" in str(ending)
    assert ray_ending_of(RayDied(dead)) == ending


def test_a_mistake_of_the_run_is_not_blamed_on_ray(monkeypatch):
    monkeypatch.setattr(module, "dead_process", lambda closely: DeadProcess("raylet", 99, None))
    assert "ValueError: bad" in str(ray_ending_of(ValueError("bad")))
    assert ray_ending_of(KeyboardInterrupt()).status == 130
    assert ray_ending_of(Terminated(15)).status == 143


def test_ray_that_does_not_start_says_how_often_it_was_tried_and_where_to_look():
    error = RayNotStarted("has not started in 3 tries (Exception: timed out)")
    assert str(ray_ending_of(error)).startswith("Ray has not started in 3 tries (Exception: timed out); see")
    error.__cause__ = OSError(28, "No space left on device")
    assert "make room there" in str(ray_ending_of(error))


def test_a_cluster_that_lets_nobody_in_is_told_with_the_variable_that_sends_a_token():
    said = str(ray_ending_of(RayNotJoined("has refused the connection (ConnectionError: Failed to connect)")))
    assert said.startswith(
        "Ray has refused the connection (ConnectionError: Failed to connect); set RAY_AUTH_MODE=token"
    )


@pytest.mark.parametrize(
    ("error", "echo"),
    [
        (failed(ray.exceptions.RaySystemError("another process has died")), True),
        (PeerError("somebody else has failed"), True),
        (DeadlineError("waited 600 s"), True),
        (died(SILENT), False),
        (failed(ValueError("bad")), False),
        (ValueError("bad"), False),
    ],
)
def test_who_only_waited_for_the_dead_is_told_from_who_has_failed(error, echo):
    assert is_echo(error) == echo


# What is done about it.


class Fleet:
    def __init__(self, done, deaths):
        self.names, self.deaths = lambda kinds: {}, lambda: list(deaths)
        self.kill = lambda: done.append("killed")
        self.ended = lambda loops, seconds: done.append("drained")


@pytest.fixture
def endings(tmp_path, monkeypatch):
    """Makes the endings of a run, and writes down what they do; the coordinator, if alive, has a ledger."""
    done = []

    def get(ledger, timeout):
        if ledger is None:
            raise ray.exceptions.ActorDiedError
        return ledger

    monkeypatch.setattr(module.ray, "get", get)
    monkeypatch.setattr(module.ray, "is_initialized", lambda: True)

    def as_it_is(ending, error, *, again):
        return ending

    def make(*, ledger=None, deaths=(), **facts):
        coordinator = SimpleNamespace(
            close_gate=SimpleNamespace(remote=lambda: done.append("gate closed")),
            read_ledger=SimpleNamespace(remote=lambda: ledger),
        )
        launched = SimpleNamespace(
            **{"step": 0, "checkpoint": None, "resume": "resume=auto", **facts},
            run_dir=tmp_path,
            coordinator=coordinator,
        )
        display = SimpleNamespace(stop=lambda: None, note=lambda text: None)
        return EndingInOrder(Fleet(done, deaths), launched, state=state, display=display, told=as_it_is)

    state = RunState()
    return SimpleNamespace(make=make, done=done, run_dir=tmp_path, state=state)


def summary_of(run_dir: Path):
    return json.loads((run_dir / "summary.json").read_text())


def test_a_failure_reads_the_ledger_before_it_ends_every_process(endings):
    in_order = endings.make(ledger=Ledger(produced=5, trained=3))
    with pytest.raises(RunFailed, match="ArithmeticError: diverged"), in_order(lambda: []):
        raise ArithmeticError("diverged")
    assert summary_of(endings.run_dir)["trajectories"]["produced"] == 5
    assert endings.done == ["killed"]


def test_where_the_coordinator_has_died_the_ledger_is_as_it_was_last(endings):
    ended = endings.make()
    endings.state.ledger = Ledger(produced=8, trained=8)
    with pytest.raises(RunFailed), ended(lambda: []):
        raise RayDied(DeadProcess("gcs_server", 7, None))
    assert summary_of(endings.run_dir)["trajectories"]["trained"] == 8
    assert [fault.process for fault in read_faults(endings.run_dir)] == ["gcs_server"]


def test_who_waited_for_the_dead_is_not_blamed(endings):
    in_order = endings.make(deaths=[ray.exceptions.ActorDiedError()])
    with pytest.raises(RunFailed, match="a worker has died without an error message"), in_order(lambda: []):
        raise PeerError("somebody else has failed")


@pytest.mark.parametrize("loops", [[], ["a loop"]])
def test_an_interrupt_lets_rollouts_end_where_there_are_any(endings, loops):
    with pytest.raises(KeyboardInterrupt), endings.make()(lambda: loops):
        raise KeyboardInterrupt
    assert endings.done == (["gate closed", "drained", "killed"] if loops else ["killed"])
    assert summary_of(endings.run_dir)["ended"] == "interrupted"


def test_a_run_that_ends_well_is_left_alone(endings):
    with endings.make()(lambda: []):
        pass
    assert (endings.done, list(endings.run_dir.iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("facts", "saved", "words"),
    [
        ({}, None, "start the run again"),
        ({}, 40, "start the run again with resume=auto, which goes on from step 40"),
        ({"step": 30, "checkpoint": Path("c")}, None, "with resume=auto, which goes on from step 30"),
        ({"resume": ""}, 40, "start the run again"),
    ],
)
def test_what_is_to_be_done_names_the_checkpoint(endings, facts, saved, words):
    ended = endings.make(**facts)
    ended.saved = ended.saved if saved is None else saved
    with pytest.raises(RunFailed), ended(lambda: []):
        raise ValueError("bad")
    assert summary_of(endings.run_dir)["ending"].endswith(words)
