from dataclasses import replace

import pytest

from rlinf_async.bench.measure import measure
from rlinf_async.bench.modes import MODES
from tests.bench.records import TINY, acting, in_order, stepping, training

SERVED = (
    stepping(0.0, 1.0, 1.0, kind="reset"),
    stepping(10.0, 1.0, 3.0),
    stepping(14.0, 1.0, 3.0),
    acting(13.0),
)


def measured(*records, warm_up=1, steps=2, mode="rollout"):
    return measure(in_order(*SERVED, *records), TINY, MODES[mode], warm_up=warm_up, steps=steps)


def test_throughput_counts_samples_that_were_trained_for_the_first_time():
    result = measured(training(10.0, 0), training(15.0, 1), training(20.0, 2))
    assert result.step_s == 5.0
    assert result.fresh_steps_per_s == 4 * 10 / 5.0
    assert result.retrained == 0.0


def test_a_sample_that_is_trained_again_is_not_counted_again():
    result = measured(training(10.0, 0), training(15.0, 0), training(20.0, 1))
    assert result.retrained == 0.5
    assert result.fresh_steps_per_s == 4 * 10 / 10.0


def test_the_bound_is_of_the_slowest_environment_with_an_answer_to_each_decision():
    result = measured(training(10.0, 0), training(15.0, 1), training(20.0, 2))
    assert result.bounds_s["env"] == 2 * (3.0 + 0.5) + 1.0
    assert result.bounds_s["learner"] == 4 * 0.25
    assert result.bounds_s["inference"] == 2 * 0.5
    assert result.overlap_efficiency == pytest.approx(8.0 / 5.0)


def test_where_fast_environments_may_contribute_more_the_bound_is_what_all_of_them_can_do_together():
    runs = training(10.0, 0), training(15.0, 1), training(20.0, 2)
    assert measured(*runs, mode="full-free").bounds_s["env"] == pytest.approx(2 / (1 / 4 + 1 / 8))


def test_an_exact_anchor_is_work_of_the_learner():
    runs = training(10.0, 0), training(15.0, 1), training(20.0, 2)
    assert measured(*runs, mode="full").bounds_s["learner"] == 4 * 0.25 + 6 * 0.25 * 0.5


def test_idle_shares_are_of_the_measured_steps_alone():
    idle = measured(training(10.0, 0), training(15.0, 1), training(20.0, 2)).idle
    assert idle["learner"] == pytest.approx(1 - 2.0 / 10)
    assert idle["inference"] == pytest.approx(1 - 0.5 / 10)
    assert idle["env"] == pytest.approx(1 - (1 + 3 + 1 + 3) / 2 / 10)


def test_of_real_simulators_and_policies_no_bound_is_known():
    real = replace(TINY, env=None, policy=None)
    runs = training(10.0, 0), training(15.0, 1), training(20.0, 2)
    result = measure(in_order(acting(13.0), *runs), real, MODES["full"], warm_up=1, steps=2)
    assert result.fresh_steps_per_s == 4 * 10 / 5.0
    assert (result.overlap_efficiency, result.bounds_s, result.chunk_cv) == (None, {}, None)
    assert set(result.idle) == {"inference"}


def test_staleness_is_that_of_the_oldest_action_in_a_step():
    fresh = measured(training(10.0, 0), training(15.0, 1, version=1), training(20.0, 2, version=2))
    assert fresh.staleness_max == 0
    late = measured(training(10.0, 0), training(15.0, 1, version=1), training(20.0, 2, version=0))
    assert late.staleness_max == 2


def test_a_run_that_trained_too_little_is_said_to_have():
    with pytest.raises(ValueError, match="trained 2 micro-batches, fewer than 3 steps of 1"):
        measured(training(10.0, 0), training(15.0, 1))
