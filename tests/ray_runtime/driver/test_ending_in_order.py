"""A run on Ray that ends otherwise than by its last step, with calls and processes of the test's own."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import PeerError
from rlinf_async.observe.ending import RunFailed
from rlinf_async.observe.failures import read_failures
from rlinf_async.ray_runtime.cluster.ray_processes import DeadProcess, RayDied
from rlinf_async.ray_runtime.driver import endings as module
from rlinf_async.ray_runtime.driver.endings import EndingInOrder


class Fleet:
    def __init__(self, done, deaths=()):
        self.done, self._deaths = done, deaths

    def names(self, kinds):
        return {}

    def deaths(self):
        return list(self._deaths)

    def ended(self, loops, seconds):
        self.done.append("drained")
        return True

    def kill(self):
        self.done.append("killed")


class Coordinator:
    """Knows the ledger, if it is alive."""

    def __init__(self, done, *, ledger=None):
        self.close_gate = SimpleNamespace(remote=lambda: done.append("gate closed"))
        self.read_ledger = SimpleNamespace(remote=lambda: ledger)


@pytest.fixture
def endings(tmp_path, monkeypatch):
    """Makes the endings of a run; `done` is what they have done, and `said` what was said."""
    done, said = [], []

    def get(ledger, timeout):
        if ledger is None:
            raise ray.exceptions.ActorDiedError
        return ledger

    monkeypatch.setattr(module.ray, "get", get)
    monkeypatch.setattr(module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(module, "dead_process", lambda **_: None)

    def make(*, ledger=None, deaths=(), **facts):
        launched = SimpleNamespace(
            **{"step": 0, "checkpoint": None, "resume": "resume=auto", **facts},
            run_dir=tmp_path,
            coordinator=Coordinator(done, ledger=ledger),
        )
        display = SimpleNamespace(stop=lambda: None, note=said.append)
        return EndingInOrder(Fleet(done, deaths), launched, display=display)

    return SimpleNamespace(make=make, done=done, said=said, run_dir=tmp_path)


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
    ended.ledger = Ledger(produced=8, trained=8)
    with pytest.raises(RunFailed), ended(lambda: []):
        raise RayDied(DeadProcess("gcs_server", 7, None))
    assert summary_of(endings.run_dir)["trajectories"]["trained"] == 8
    assert [fault["process"] for fault in read_failures(endings.run_dir)] == ["gcs_server"]


def test_who_waited_for_the_dead_is_not_blamed(endings):
    in_order = endings.make(deaths=[ray.exceptions.ActorDiedError()])
    with pytest.raises(RunFailed, match="a worker has died without a word"), in_order(lambda: []):
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
