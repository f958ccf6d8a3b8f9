"""What is measured where episodes end early, and what comes after them may be left out."""

from dataclasses import replace

import pytest

from rlinf_async.lab.bench.measure import measure
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import BENCH_MODES
from rlinf_async.lab.emulated.service import SAMPLE_NUMBER_BASE
from tests.lab.bench.records import TINY, acting, in_order, record, stepping

ENDING = replace(TINY, env=replace(TINY.env, success=1.0), decisions=4, micro_batch_size=8)
"""Two environments with four decisions each."""


def sample(env, rollout, decision):
    return (env * SAMPLE_NUMBER_BASE + rollout) * SAMPLE_NUMBER_BASE + decision


def training(ended, rollout, decisions, *, oldest=0, seconds=0.5):
    """A micro-batch of these decisions of both environments."""
    samples = [sample(env, rollout, decision) for env in (0, 1) for decision in decisions]
    return record("train", ended - seconds, ended, size=len(samples), samples=samples, oldest=oldest)


def step(began, first, second, shares):
    return {**stepping(began, first, second), "shares": shares}


def rollout(began, *, dead):
    """The first environment ends after one decision of 1 s, the second after two of 2 s; to the horizon
    without `dead`: in all a reset of 1 s, and 2 s a decision.
    """
    shares = [[1.0, 0.5], [0.0, 0.5], *([[0.0, 0.0]] * 2 if dead else [])]
    steps = [step(began + 1.5 + 2.0 * index, 1.0, 1.5, each) for index, each in enumerate(shares)]
    return [
        stepping(began, 1.0, 1.0, kind="reset"),
        *steps,
        *(acting(began + 1.0 + 2.0 * index) for index in range(len(shares))),
    ]


def measured(mode, *records):
    return measure(in_order(*records), ENDING, BENCH_MODES[mode], warm_up=1, steps=2)


@pytest.fixture
def dead():
    """Ten seconds a step, all samples trained."""
    served = [one for begin in (0.0, 10.0, 20.0) for one in rollout(begin, dead=True)]
    return measured("levels", *served, *(training(10.0 * (1 + index), index, range(4)) for index in range(4)))


@pytest.fixture
def alive():
    """Six seconds a step, in one pass or two over what was played."""
    served = [one for begin in (0.0, 6.0, 12.0) for one in rollout(begin, dead=False)]
    passes = [
        training(6.0, 0, range(2)),
        training(11.0, 1, range(1)),
        training(12.0, 1, range(1, 2), oldest=0),
        training(18.0, 2, range(2), oldest=1),
        training(24.0, 3, range(2), oldest=3),
    ]
    return measured("lean", *served, *passes)


def test_a_step_counts_what_the_synchronous_loop_would_do_whatever_is_left_out(dead, alive):
    assert (dead.step_s, alive.step_s) == (10.0, 6.0)
    assert dead.fresh_steps_per_s == pytest.approx(8 * 10 / 10.0)
    assert alive.fresh_steps_per_s == pytest.approx(8 * 10 / 6.0)
    assert (dead.retrained, alive.retrained) == (0.0, 0.0)


def test_the_bound_is_of_the_episodes_alone_and_the_same_with_and_without_dead_work(dead, alive):
    assert dead.bounds_s == pytest.approx(alive.bounds_s)
    assert alive.bounds_s["env"] == pytest.approx(1.0 + 2 * (1.5 + 0.5))
    # Three of eight decisions are played: of the learner 0.25 s each, of inference 0.5 s a pass.
    assert alive.bounds_s["learner"] == pytest.approx(3 * 0.25)
    assert alive.bounds_s["inference"] == pytest.approx(3 / 8 * 4 * 0.5)


def test_a_modes_own_bound_has_what_it_steps_after_the_ends(dead, alive):
    # Four decisions of the second environment, all stepped, against two; the reset once.
    tasks = ((1.0 + 4 * (1.0 + 0.5)) + (1.0 + 4 * (1.5 + 0.5))) / 2
    assert dead.own_bounds_s["env"] == pytest.approx(tasks)
    assert alive.own_bounds_s["env"] == pytest.approx(1.0 + 2 * (1.5 + 0.5))


def test_lag_is_counted_in_steps_however_many_passes_each_has(alive):
    assert alive.staleness_max == 1


def test_too_short_a_run_says_how_much_it_has_trained():
    with pytest.raises(ValueError, match=r"the run trained 2 micro-batches, fewer than 3 steps"):
        measured("lean", training(6.0, 0, range(2)), training(12.0, 1, range(2)))


def test_the_scenario_has_the_lengths_of_libero_spatials_demonstrations():
    scenario = SCENARIOS_BY_NAME["ends-early"]
    lengths = scenario.env.lengths
    draws = [
        lengths.draw(env, 0, horizon=scenario.decisions, seed=0) / scenario.decisions for env in range(2000)
    ]
    assert max(draw for draw in draws if draw < 1) * 512 <= 193 + 16
    assert sum(draw < 1 for draw in draws) / 2000 == pytest.approx(0.6, abs=0.04)
