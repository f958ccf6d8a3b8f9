"""What environments draw."""

from itertools import islice

import numpy as np
import pytest

from rlinf_async.lab.virtual.times import (
    DurationDraws,
    PolicyTimes,
    SimulatorBatch,
    SimulatorTimes,
    TrainingTimes,
)


def test_draws_have_the_mean_and_the_spread_that_are_said():
    for draws in (DurationDraws(mean=2.0, cv=0.5), DurationDraws.of([1.0, 2.0, 3.0, 6.0])):
        seen = list(islice(draws.stream(np.random.default_rng(0), 3.0), 20_000))
        assert np.mean(seen) == pytest.approx(3 * draws.mean, rel=0.02)
        assert np.std(seen) / np.mean(seen) == pytest.approx(draws.cv, rel=0.05)


def test_an_environment_draws_the_same_in_every_shard():
    times = SimulatorTimes(
        decision=DurationDraws(mean=1.0, cv=1.0), reset=DurationDraws(mean=1.0, cv=1.0), tasks=(1.0, 2.0)
    )
    whole = SimulatorBatch(times, 0, 4)
    parts = [SimulatorBatch(times, first, 2) for first in (0, 2)]
    for _ in range(3):
        assert whole.step() == parts[0].step() + parts[1].step()
        assert whole.reset() == parts[0].reset() + parts[1].reset()


def test_environments_in_one_process_take_the_sum_and_vectorised_ones_the_time_of_one():
    turn = SimulatorTimes(decision=DurationDraws(mean=1.0), in_turn=True)
    assert SimulatorBatch(turn, 0, 4).step() == (4.0,)
    at_once = SimulatorTimes(decision=DurationDraws(mean=1.0), vectorised=True)
    assert SimulatorBatch(at_once, 0, 4).step() == (1.0,)


def test_a_forward_pass_is_read_between_what_was_measured_and_grows_beyond_it():
    policy = PolicyTimes(env_s=0.25, by_size=((1, 1.0), (3, 2.0)))
    assert [policy.forward_s(size) for size in (1, 2, 3, 7)] == [1.0, 1.5, 2.0, 3.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DurationDraws(mean=-1.0), "mean=-1.0"),
        (lambda: TrainingTimes(sample_s=float("nan")), "training.sample_s"),
        (lambda: PolicyTimes(by_size=((4, 1.0), (2, 1.0))), "must ascend"),
        (lambda: PolicyTimes(by_size=()), "must ascend"),
    ],
)
def test_times_that_cannot_be_are_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()
