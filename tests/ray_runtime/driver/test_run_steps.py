"""What the driver does with a step that has been trained: in which order it is saved and written down."""

from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.observe.spans import UNRECORDED
from rlinf_async.ray_runtime.driver.run import AsyncRun


class Saver:
    """Writes down what is done; the checkpoint cannot be written if it `fails`."""

    def __init__(self, done, *, fails=False):
        self.done, self.fails, self.failed = done, fails, int(fails)

    def save(self, step, *, last, before):
        if not self.fails:
            before()
            self.done.append(f"checkpoint {step} is whole")


@pytest.fixture
def run():
    """A run whose third step is trained, while its second waits to be reported."""
    run, done = AsyncRun.__new__(AsyncRun), []
    run.done, run.step, run.total, run._closed_step, run._began = done, 2, 9, 2, 0.0
    run._spans, run._turns = UNRECORDED, None
    run._wait_for_learner = lambda: [{"publication_seconds": 0.5}]
    run._learn = lambda: done.append("the next batch begins")
    run._revivals = SimpleNamespace()
    run._publication = SimpleNamespace(
        follow=lambda step: [], wait=lambda step, published: done.append("acts")
    )
    run._report = lambda trained: done.append((trained.step, dict(trained.evaluation)))
    run._steps_to_report = deque([SimpleNamespace(step=2, evaluation={})])
    run._evaluation = lambda: {"eval/success_once": 1.0}
    return run


def due(run, *, evaluate=False, save=False, fails=False):
    run._hooks = SimpleNamespace(due=lambda step: (evaluate, save))
    run.saver = Saver(run.done, fails=fails)
    run._step()
    return run.done


def test_a_step_is_written_down_before_its_checkpoint_is_whole(run):
    found = {"eval/success_once": 1.0, "async/save_failures": 0.0}
    assert due(run, evaluate=True, save=True) == [
        "acts",
        (2, {}),
        (3, found),
        "checkpoint 3 is whole",
        "the next batch begins",
    ]
    assert (run.step, list(run._steps_to_report)) == (3, [])


def test_a_step_whose_checkpoint_cannot_be_written_is_reported_with_that_later(run):
    assert due(run, save=True, fails=True) == ["acts", "the next batch begins"]
    two, three = run._steps_to_report
    assert (two.step, three.step, three.evaluation) == (2, 3, {"async/save_failures": 1.0})
    assert three.seconds > 0


def test_other_steps_are_reported_while_the_next_is_trained(run):
    assert due(run) == ["the next batch begins"]
    assert [trained.step for trained in run._steps_to_report] == [2, 3]
