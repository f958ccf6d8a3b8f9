"""At which weights a learner rank anchors and scores its samples, and what it leaves to the framework."""

import pytest
import torch

from rlinf_async.config import AsyncConfig, sections
from tests.loops.test_streaming_learner import HORIZON, PLAN, Training, learner_of, rollouts
from tests.making import plan, run_settings


class Moving(Training):
    """Weights of two numbers, to which every optimizer step adds one; notes those at which it anchors."""

    def __init__(self, ranks=1):
        super().__init__()
        self.weights, self.anchored, self.whole, self._ranks = torch.zeros(2), [], [], ranks

    def anchor(self, rollout, scores=None):
        self.anchored.append(self.weights[0].item())

    def train_micro_batch(self, samples, *, steps):
        super().train_micro_batch(samples, steps=steps)
        self.weights += steps

    def train_whole(self, rollout):
        self.whole.append(rollout["number"].T.tolist())
        self.weights += 2
        return {"loss": 0.5}

    def summed(self, sums):
        return {name: value * self._ranks for name, value in sums.items()}


class Scoring(Moving):
    """Half of the samples are of the version before, and nobody knows their scores."""

    def begin(self, batch):
        super().begin(batch)
        self.passes = []

    def probe_samples(self, rollout):
        numbers = rollout["number"].flatten()
        return {"number": numbers}, numbers % 2, None

    def score(self, inputs):
        self.passes.append((self.weights[0].item(), len(inputs["number"])))
        return torch.zeros(len(inputs["number"])), torch.zeros(len(inputs["number"]))


def learn(training, block, *, pieces=4, batches=1, layout=PLAN, probe_size=3, order=range(4), **changes):
    """What `training` returned of the last of `batches`, the first `pieces` of each of which arrive."""
    one = {"horizon": HORIZON, "global_batch_size": 8, "micro_batch_size": 4, "normalizes": False}
    settings = run_settings(plan=layout, asynchrony=AsyncConfig.from_mapping(block), **one | changes)
    learner = learner_of(settings, training, parameters=lambda: [training.weights], probe_size=probe_size)
    for batch in range(batches):
        learner.begin(batch)
        came = list(rollouts(batch, HORIZON))[:pieces]
        for number in order[:pieces]:
            learner.accept([came[number]])
        metrics = learner.finish()
    return metrics


def full(*, measure):
    return {
        "mode": "full",
        "advanced": {"proximal": "recomputed", "measure_ratios": measure, "normalization": "running"},
    }


def test_every_piece_is_anchored_at_the_weights_that_began_the_batch():
    training = Moving()
    learn(training, full(measure=False), batches=2)
    assert training.anchored == [0.0] * 4 + [2.0] * 4
    assert training.weights.tolist() == [4.0, 4.0]


def test_as_many_samples_as_are_asked_for_are_scored_by_each_policy_that_may_have_drawn_them():
    training = Scoring()
    learn(training, full(measure=True), batches=2, probe_size=3)
    # By the one before the fresh ones are not scored; by the one that began the batch all are.
    assert training.passes == [(0.0, 3), (2.0, 3), (2.0, 3)]


@pytest.mark.parametrize(("most", "scored"), [(8, [0.0, 2.0]), (7, [])])
def test_ranks_decide_by_the_mean_of_what_they_hold_whether_versions_are_compared(monkeypatch, most, scored):
    monkeypatch.setattr(sections, "MAX_COMPARED_BYTES", most)
    training = Scoring(ranks=2)  # of eight bytes each
    two = plan(total_envs=4, shards_per_worker=4, learner_ranks=2)
    learn(training, full(measure="auto"), batches=2, layout=two, pieces=2)
    assert sorted({weight for weight, _ in training.passes}) == scored


def test_each_rank_says_how_much_of_its_own_share_was_trained_before_its_last_piece():
    training = Moving(ranks=2)
    two = plan(total_envs=4, shards_per_worker=4, learner_ranks=2)
    learn(training, full(measure=False), layout=two, pieces=2)
    assert training.noted["streamed"] == pytest.approx(2 / 8)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_a_whole_batch_is_left_to_the_framework_in_the_order_of_its_places(order):
    training = Moving()
    block = {"mode": "train", "advanced": {"measure_ratios": False}}
    assert learn(training, block, order=order) == {"loss": 0.5}
    assert training.whole == [[[4 * place + step for step in range(4)] for place in range(4)]]
    assert training.micro_batches == [[]]


def test_a_first_batch_that_is_kept_for_its_scale_is_not_left_to_the_framework():
    training = Moving()
    learn(training, full(measure=False), normalizes=True)
    assert training.whole == []
    assert [steps for _, steps in training.micro_batches[0]] == [False, True] * 2


def test_the_last_pieces_are_taken_in_although_they_fill_no_micro_batch():
    training = Moving()
    three = plan(total_envs=3, shards_per_worker=3)
    learn(training, full(measure=False), layout=three, pieces=3, global_batch_size=12, micro_batch_size=6)
    assert len(training.anchored) == 2  # two pieces, and the third
    assert sum(len(numbers) for numbers, _ in training.micro_batches[0]) == 12


def test_at_a_checkpoint_that_is_due_no_earlier_version_is_remembered():
    block = {"mode": "train", "deterministic": True, "advanced": {"measure_ratios": True}}
    scored = {}
    for save_every in (0, 2):
        training = Scoring()
        learn(training, block, batches=3, save_every=save_every)
        scored[save_every] = sorted({weight for weight, _ in training.passes})
    assert scored == {0: [2.0, 4.0], 2: [4.0]}
