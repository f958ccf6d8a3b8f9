"""What the driver does, and in which order: its processes are stood in for by a table of their answers."""

from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async import __version__
from rlinf_async.observe.spans import UNRECORDED
from rlinf_async.ray_runtime.driver import run as module
from rlinf_async.ray_runtime.driver.run import AsyncRun, Publication, Turns, check_versions


class Fleet:
    """Writes down what was asked of whom, in order, and which calls are watched."""

    def __init__(self, **answers):
        self.answers, self.said, self.watched = answers, [], []

    def call(self, group, method, *arguments):
        self.said.append((group, method.__name__, *arguments))
        return [f"{group}.{method.__name__}"]

    def run(self, group, method, *arguments):
        self.call(group, method, *arguments)
        return self.answers.get(f"{group}_{method.__name__}", [f"answer to {method.__name__}"])

    def watch(self, references, _):
        self.watched += references

    def wait(self, references, _):
        return references


def test_another_version_on_one_rank_is_refused():
    same = [__version__] * 2
    fleet = Fleet(env_plugin_version=same, inference_plugin_version=[__version__, "0.0.1"])
    with pytest.raises(RuntimeError, match=r"inference rank 1 runs rlinf-async 0\.0\.1"):
        check_versions(fleet)


def test_the_learner_knows_its_receivers_before_it_offers_anything():
    fleet = Fleet()
    Publication(fleet, "coordinator", keeps=True).first(4)
    assert fleet.said == [
        ("inference", "weight_types"),
        ("learner", "expect_receivers", "answer to weight_types", True),
        ("learner", "offer_weights", 4, "coordinator"),
        ("learner", "weights_sent"),
        ("coordinator", "weights_published", 4),
    ]


def test_a_version_that_cannot_be_sent_is_noticed_while_others_wait():
    fleet = Fleet()
    published = Publication(fleet, "coordinator", keeps=True).follow(5)
    assert published == ["coordinator.weights_published"]
    assert fleet.watched == ["learner.weights_sent"]


@pytest.fixture
def turns(monkeypatch):
    """The turns of three batches; `said` is what was waited for."""
    fleet, said = Fleet(), []
    monkeypatch.setattr(fleet, "wait", lambda references, _: said.extend(references))
    collected = SimpleNamespace(remote=lambda version: f"collected {version}")
    keeper = Turns(fleet, SimpleNamespace(collected=collected), batches=3)
    return SimpleNamespace(give_to_learner=keeper.give_to_learner, said=said)


def test_the_others_leave_when_the_batch_is_collected_and_only_once_for_a_batch(turns):
    turns.give_to_learner(0)
    turns.give_to_learner(0)
    assert turns.said == ["collected 1", "inference.leave", "env.leave"]
    turns.give_to_learner(1)
    assert turns.said[3:] == ["collected 2", "inference.leave", "env.leave"]


def test_after_the_last_batch_nothing_is_waited_for(turns):
    turns.give_to_learner(3)
    assert turns.said == ["inference.leave", "env.leave"]


# A step that has been trained: in which order it is saved and written down.


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


# A run that is asked to end: what it saves of the steps since its last checkpoint.


def ended(run, monkeypatch, *, renews, began=2, last=4):
    """The steps at which it saves, and what it says; five are trained."""
    monkeypatch.setattr(module.TERMINATION, "end", lambda: None)
    saved, said = [], []
    run.step, run.display = 5, SimpleNamespace(note=said.append)
    run.settings = SimpleNamespace(renews=renews)
    run.fleet = SimpleNamespace(let_go=lambda: None)
    run.saver = SimpleNamespace(saved=last)
    run._parts = SimpleNamespace(step=began)
    run._coordinator = SimpleNamespace(close_gate=SimpleNamespace(remote=lambda: None))
    run._hooks = SimpleNamespace(checkpoint=lambda step: f"global_step_{step}")

    def save():
        saved.append(run.step)
        run.saver.saved = run.step

    monkeypatch.setattr(run, "_save", save)
    run._end_early()
    return saved, said[-1]


def test_what_has_been_trained_is_saved(run, monkeypatch):
    assert ended(run, monkeypatch, renews=False) == ([5], "saved global_step_5")


@pytest.mark.parametrize("already", [{"last": 5}, {"began": 5, "last": None}])
def test_nothing_is_saved_that_is_there(run, monkeypatch, already):
    assert ended(run, monkeypatch, renews=False, **already)[0] == []


def test_a_run_that_continues_bit_for_bit_does_so_from_checkpoints_that_were_due(run, monkeypatch):
    assert ended(run, monkeypatch, renews=True) == ([], "nothing new is saved")
