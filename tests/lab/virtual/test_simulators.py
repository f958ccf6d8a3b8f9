"""What environments draw."""

from itertools import islice

import numpy as np
import pytest

from rlinf_async.lab.virtual.simulators import DurationDraws, SimulatorTimes
from rlinf_async.lab.virtual.times import PolicyTimes, TrainingTimes


def test_draws_have_the_mean_and_the_spread_that_are_said():
    for draws in (DurationDraws(mean=2.0, cv=0.5), DurationDraws.of([1.0, 2.0, 3.0, 6.0])):
        seen = list(islice(draws.stream(np.random.default_rng(0), 3.0), 20_000))
        assert np.mean(seen) == pytest.approx(3 * draws.mean, rel=0.02)
        assert np.std(seen) / np.mean(seen) == pytest.approx(draws.cv, rel=0.05)


def test_an_environment_draws_the_same_in_every_shard():
    times = SimulatorTimes(
        decision=DurationDraws(mean=1.0, cv=1.0), reset=DurationDraws(mean=1.0, cv=1.0), tasks=(1.0, 2.0)
    )
    whole = times.batch(0, 4)
    parts = [times.batch(first, 2) for first in (0, 2)]
    for _ in range(3):
        assert whole.step().each == parts[0].step().each + parts[1].step().each
        assert whole.reset().each == parts[0].reset().each + parts[1].reset().each


def test_environments_in_one_process_take_the_sum_and_vectorised_ones_the_time_of_one():
    turn = SimulatorTimes(decision=DurationDraws(mean=1.0), in_turn=True)
    assert turn.batch(0, 4).step().each == (4.0,)
    at_once = SimulatorTimes(decision=DurationDraws(mean=1.0), vectorised=True, decision_env_s=0.5)
    assert at_once.batch(0, 4).step().each == (3.0,)


def test_episodes_end_as_often_as_is_said_and_are_reset_on_the_spot():
    batch = SimulatorTimes(
        decision=DurationDraws(mean=1.0), reset=DurationDraws(mean=4.0), episode=5.0
    ).batch(0, 1)
    stints = [batch.step() for _ in range(5000)]
    assert np.mean([one.ends for one in stints]) == pytest.approx(0.2, abs=0.02)
    assert {one.each[0] for one in stints if one.ends} == {5.0}
    assert batch.reset().each == (0.0,)


def test_a_forward_pass_is_read_between_what_was_measured_and_grows_beyond_it():
    policy = PolicyTimes(env_s=0.25, by_size=((1, 1.0), (3, 2.0)))
    assert [policy.forward_s(size) for size in (1, 2, 3, 7)] == [1.0, 1.5, 2.0, 3.0]
    assert PolicyTimes(fixed_s=1.0, env_s=0.25).forward_s(4) == 2.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DurationDraws(mean=-1.0), "mean=-1.0"),
        (lambda: TrainingTimes(sample_s=float("nan")), "training.sample_s"),
        (lambda: PolicyTimes(by_size=((4, 1.0), (2, 1.0))), "must ascend"),
    ],
)
def test_times_that_cannot_be_are_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()
