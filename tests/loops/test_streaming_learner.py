"""Which samples a learner rank trains on, and when, whatever framework trains them."""

import itertools
import math
import weakref
from contextlib import nullcontext

import pytest
import torch

from rlinf_async.config import AdvancedConfig, AsyncConfig, TrainConfig
from rlinf_async.config.sections import StreamerConfig
from rlinf_async.core.scores import WHOLE
from rlinf_async.core.tensors import concatenate, map_tensors
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from tests.making import piece, plan, run_settings, ticket

PLAN = plan(total_envs=4, shards_per_worker=4)
HORIZON = 4


class Training:
    """Trains on nothing, and notes the numbers of the samples of each micro-batch, and where steps end."""

    scored = WHOLE
    cut = math.inf

    def __init__(self):
        self.micro_batches, self.noted = [], {}
        self.kept = None
        self.shuffled = []

    def working(self):
        return nullcontext()

    def begin(self, batch):
        self.micro_batches.append([])

    def rollout(self, pieces):
        return concatenate([piece.payload for piece in pieces], dim=1)

    def estimate(self, rollout):
        self.kept = rollout["number"].tolist()
        rollout["advantages"] = rollout["number"].float()

    def samples(self, rollout, order):
        samples = map_tensors(lambda tensor: tensor.flatten()[order], rollout)
        self.shuffled.append(weakref.ref(samples["number"]))
        return samples

    def train_micro_batch(self, samples, *, steps):
        self.micro_batches[-1].append((samples["number"].tolist(), steps))

    def train_whole(self, rollout):
        self.kept = rollout["number"].tolist()
        return {}

    def note(self, name, value):
        self.noted[name] = value

    def sums_to_normalize(self, sums):
        return sums

    def finish(self, normalized):
        return {}

    def anchor(self, rollout, scores=None):
        """Nothing of what is noted depends on it."""

    def summed(self, sums):
        return sums


def rollouts(batch, horizon):
    """A piece of `horizon` samples from each of four environments; no two have the same number."""
    for shard in range(PLAN.shards):
        numbers = torch.arange(horizon).view(horizon, 1) + horizon * shard
        yield piece(ticket(shard=shard, batch=batch), payload={"number": numbers})


def learner_of(settings, training, *, parameters=list, **options):
    """A learner rank on a clock that stands still."""
    busy = BusyMeter(now=lambda: 0.0)
    return StreamingLearner(training, settings, parameters=parameters, busy=busy, **options)


def train(*, order=range(4), batches=1, **changes):
    """The micro-batches of the last of `batches`, whose pieces arrive in this order."""
    asynchrony = AsyncConfig(
        streamer=StreamerConfig(enabled=True), advanced=AdvancedConfig(normalization="running")
    )
    one = {
        "plan": PLAN,
        "asynchrony": asynchrony,
        "horizon": HORIZON,
        "global_batch_size": 8,
        "micro_batch_size": 4,
        "normalizes": False,
    }
    settings, training = run_settings(**one | changes), Training()
    learner = learner_of(settings, training)
    for batch in range(batches):
        learner.begin(batch)
        pieces = list(rollouts(batch, settings.horizon))
        for shard in order:
            learner.accept([pieces[shard]])
        training.metrics = learner.finish()
    training.settings = settings
    return training


def steps_of(training):
    """The numbers of the samples of each optimizer step of the last batch."""
    steps = [[]]
    for numbers, ends in training.micro_batches[-1]:
        steps[-1] += numbers
        if ends:
            steps.append([])
    assert steps.pop() == []
    return steps


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_steps_that_are_spread_have_equal_shares_of_every_rollout_and_all_samples_once(order):
    first, second = steps_of(train(order=order))
    assert sorted(first + second) == list(range(16))
    for step in (first, second):
        assert [sum(number // HORIZON == shard for number in step) for shard in range(4)] == [2, 2, 2, 2]


def test_of_steps_that_are_spread_the_first_alone_begins_before_the_last_piece():
    assert train().noted["streamed"] == pytest.approx(6 / 16)  # two samples of each of three pieces
    assert train(global_batch_size=16).noted["streamed"] == pytest.approx(12 / 16)


def test_a_rollout_that_steps_do_not_divide_is_shared_out_so_that_steps_are_equal_in_the_end():
    training = train(horizon=6, global_batch_size=6, micro_batch_size=2)
    steps = steps_of(training)
    assert [len(step) for step in steps] == [6] * 4
    assert sorted(itertools.chain(*steps)) == list(range(24))
    # Of six samples at a time the first of four steps has 1, 3, 4 and 6: four before the last piece.
    assert training.noted["streamed"] == pytest.approx(4 / 24)


@pytest.mark.parametrize(("together", "ahead"), [(1, 3 / 4), (2, 2 / 4), (4, 0.0)])
def test_a_batch_whose_gradients_wait_is_anchored_as_its_pieces_come(together, ahead):
    deferred = AsyncConfig(
        train=TrainConfig(enabled=True),
        streamer=StreamerConfig(enabled=True),
        advanced=AdvancedConfig(measure_ratios=False, normalization="deferred"),
    )
    sizes = {"global_batch_size": 16, "micro_batch_size": HORIZON * together}
    training = train(asynchrony=deferred, normalizes=True, **sizes)
    assert training.metrics["train/anchored"] == ahead
    assert training.settings.pieces_anchored_ahead == 4 * ahead
    assert training.micro_batches == [[]]  # the whole batch was trained at once


def test_update_epochs_train_the_same_samples_again_in_an_order_of_the_seed():
    def epochs(seed):
        return steps_of(train(update_epoch=3, global_batch_size=16, seed=seed))

    assert epochs(0) == epochs(0)
    assert epochs(0) != epochs(1)
    first, *later = epochs(0)
    assert all(sorted(numbers) == list(range(16)) for numbers in (first, *later))
    assert later == [later[0]] * 2
    assert first != later[0]


def test_the_samples_of_a_batch_are_let_go_once_they_are_trained():
    for epochs in (1, 3):
        assert [samples() for samples in train(update_epoch=epochs).shuffled] == [None] * 4


def test_batches_are_shuffled_anew():
    assert train().micro_batches != train(batches=2).micro_batches[1:]


@pytest.mark.parametrize("streams", [True, False])
def test_pieces_that_are_kept_are_joined_by_their_places_in_the_batch_and_not_as_they_came(streams):
    asynchrony = AsyncConfig(
        streamer=StreamerConfig(enabled=streams), advanced=AdvancedConfig(normalization="running")
    )
    orders = itertools.permutations(range(4))
    found = [train(order=order, asynchrony=asynchrony, normalizes=True).kept for order in orders]
    assert found == [(torch.arange(16).view(4, 4).T).tolist()] * 24
