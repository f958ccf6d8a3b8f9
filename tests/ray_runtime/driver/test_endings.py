"""What an error of Ray's says of the end of a run: made by hand, as Ray makes them."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from pathlib import Path

import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from rlinf_async.core.failures import DeadlineError, PeerError, Terminated
from rlinf_async.ray_runtime.cluster.ray_processes import DeadProcess, RayDied
from rlinf_async.ray_runtime.cluster.starting import RayNotStarted
from rlinf_async.ray_runtime.driver import endings
from rlinf_async.ray_runtime.driver.endings import is_echo, ray_ending_of

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
    monkeypatch.setattr(endings, "dead_process", lambda closely: None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (died(SILENT), ("has died without a word", "dmesg")),
        (died("Task was killed due to the node running low on memory."), ("for want of memory",)),
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


def test_a_revival_that_gives_up_says_why():
    error = RuntimeError("inference rank 1 has died 6 times within 600 s")
    error.__cause__ = died(SILENT)
    ending = ray_ending_of(error, names={ACTOR.hex(): "inference rank 1"})
    assert "inference rank 1 has died 6 times within 600 s" in str(ending)


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
    monkeypatch.setattr(endings, "dead_process", lambda closely: dead)
    ending = ray_ending_of(error, names=NAMES)
    assert str(ending).startswith("Ray's process raylet (99) has died")
    assert ("its helper RuntimeEnvAgent" in str(ending)) == (helper is not None)
    assert "/tmp/ray/logs" in str(ending)
    assert ray_ending_of(RayDied(dead)) == ending


def test_a_mistake_of_the_run_is_not_blamed_on_ray(monkeypatch):
    monkeypatch.setattr(endings, "dead_process", lambda closely: DeadProcess("raylet", 99, None))
    assert "ValueError: bad" in str(ray_ending_of(ValueError("bad")))
    assert ray_ending_of(KeyboardInterrupt()).status == 130
    assert ray_ending_of(Terminated(15)).status == 143


def test_ray_that_does_not_start_says_how_often_it_was_tried_and_where_to_look():
    error = RayNotStarted("has not started in 3 tries (Exception: timed out)")
    assert str(ray_ending_of(error)).startswith("Ray has not started in 3 tries (Exception: timed out); see")
    error.__cause__ = OSError(28, "No space left on device")
    assert "make room there" in str(ray_ending_of(error))


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
