"""What a run that is asked to end saves of the steps since its last checkpoint."""

from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.ray_runtime.driver import run as module
from rlinf_async.ray_runtime.driver.run import AsyncRun


def ended(monkeypatch, *, renews, began=2, last=4):
    """The steps at which it saves, and what it says; five are trained."""
    monkeypatch.setattr(module.TERMINATION, "end", lambda: None)
    run, saved, said = AsyncRun.__new__(AsyncRun), [], []
    run.step, run.display = 5, SimpleNamespace(note=said.append)
    run.settings = SimpleNamespace(renews=renews)
    run.fleet = SimpleNamespace(let_go=lambda: None)
    run.saver = SimpleNamespace(saved=last)
    run._parts, run._steps_to_report = SimpleNamespace(step=began), deque()
    run._coordinator = SimpleNamespace(close_gate=SimpleNamespace(remote=lambda: None))
    run._hooks = SimpleNamespace(checkpoint=lambda step: f"global_step_{step}")

    def save():
        saved.append(run.step)
        run.saver.saved = run.step

    monkeypatch.setattr(run, "_save", save)
    run._end_early()
    return saved, said[-1]


def test_what_has_been_trained_is_saved(monkeypatch):
    assert ended(monkeypatch, renews=False) == ([5], "saved global_step_5")


@pytest.mark.parametrize("already", [{"last": 5}, {"began": 5, "last": None}])
def test_nothing_is_saved_that_is_there(monkeypatch, already):
    assert ended(monkeypatch, renews=False, **already)[0] == []


def test_a_run_that_continues_bit_for_bit_does_so_from_checkpoints_that_were_due(monkeypatch):
    assert ended(monkeypatch, renews=True) == ([], "nothing new is saved")
