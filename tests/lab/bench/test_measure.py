from dataclasses import replace

import pytest

from rlinf_async.lab.bench.measure import measure
from rlinf_async.lab.bench.sides import BENCH_MODES
from tests.lab.bench.records import TINY, acting, in_order, rollout, scoring, stepping, training

SERVED = (*rollout(0.0), *rollout(10.0), *rollout(20.0))
TRAINED = (training(10.0, 0), training(20.0, 1), training(30.0, 2))


def measured(*records, served=SERVED, warm_up=1, steps=2, mode="full-exact", scenario=TINY):
    return measure(in_order(*served, *records), scenario, BENCH_MODES[mode], warm_up=warm_up, steps=steps)


def test_throughput_counts_samples_that_were_trained_for_the_first_time():
    result = measured(*TRAINED)
    assert result.step_s == 10.0
    assert result.fresh_steps_per_s == 4 * 10 / 10.0
    assert result.retrained == 0.0


def test_a_sample_that_is_trained_again_is_not_counted_again():
    result = measured(training(10.0, 0), training(20.0, 0), training(30.0, 1))
    assert result.retrained == 0.5
    assert result.fresh_steps_per_s == 4 * 10 / 20.0


def test_what_was_collected_before_is_no_throughput_of_the_steps_in_which_it_is_trained():
    # The rollout of the second step had been collected when the window began.
    result = measured(*TRAINED, served=(*rollout(0.0), *rollout(0.0), *rollout(20.0)))
    assert (result.trained_per_s, result.collected_per_s) == (8 / 20, 4 / 20)
    assert result.fresh_steps_per_s == 4 * 10 / 20.0


def test_what_is_collected_and_not_trained_is_no_throughput_either():
    late = (training(10.0, 0), training(40.0, 1), training(70.0, 2))
    result = measured(*late, served=[one for start in range(0, 70, 10) for one in rollout(float(start))])
    assert (result.trained_per_s, result.collected_per_s) == (8 / 60, 24 / 60)
    assert result.fresh_steps_per_s == 8 * 10 / 60


def test_a_decision_counts_for_the_part_of_it_that_lies_in_the_window():
    # The second decision of the last rollout takes from 25 to 28; the window ends at 26.5.
    result = measured(training(10.0, 0), training(20.0, 1), training(26.5, 2))
    assert result.collected_per_s == pytest.approx(7 / 16.5)


def test_the_bound_is_of_the_slowest_environment_with_an_answer_to_each_decision():
    result = measured(*TRAINED)
    assert result.bounds_s["env"] == pytest.approx(2 * (3.0 + 0.5) + 1.0)
    assert result.bounds_s["learner"] == 4 * 0.25
    assert result.bounds_s["inference"] == 2 * 0.5
    assert result.overlap_efficiency == pytest.approx(8.0 / 10.0)


def test_where_simulators_use_the_policys_device_what_they_take_of_it_bounds_inference():
    drawing = replace(TINY, env=replace(TINY.env, device_s=0.125))
    assert measured(*TRAINED, scenario=drawing).bounds_s["inference"] == 2 * (0.5 + 2 * 0.125)


def test_one_bound_holds_for_all_modes_and_beside_it_stands_what_the_mode_makes_its_learner_do():
    anchors = (scoring(13.0), scoring(23.0))
    plain, full = (measured(*TRAINED, *anchors, mode=mode) for mode in ("stock-sync-1", "full-exact"))
    assert plain.bounds_s == full.bounds_s
    assert full.bounds_s["learner"] == 4 * 0.25
    assert full.own_bounds_s["learner"] == 1.0 + 2.0  # as long as it trained and scored in fact
    assert full.own_bounds_s["env"] == full.bounds_s["env"]
    learners = replace(TINY, policy=replace(TINY.policy, train_sample_s=2.25))
    beside = measured(
        *(training(10.0 * (1 + step), step, seconds=9.0) for step in range(3)), *anchors, scenario=learners
    )
    assert beside.overlap_efficiency == pytest.approx(9.0 / 10.0)
    assert beside.own_efficiency == pytest.approx(11.0 / 10.0)


def test_batches_of_tasks_that_whoever_is_free_takes_on_are_measured_against_their_mean():
    result = measured(*TRAINED, mode="full")
    assert result.own_bounds_s["env"] == pytest.approx((4 + 8) / 2)
    assert result.bounds_s["env"] == pytest.approx(8)
    assert result.overlap_efficiency is None


def test_batches_of_unequal_shares_are_measured_against_what_all_environments_can_do_together():
    result = measured(*TRAINED, mode="stock-decoupled")
    assert result.own_bounds_s["env"] == pytest.approx(2 / (1 / 4 + 1 / 8))
    assert result.own_efficiency == pytest.approx(16 / 3 / 10)
    assert result.overlap_efficiency is None


def test_one_that_is_busy_for_longer_than_the_steps_took_is_an_error_that_names_it():
    # Both decide five times in a window in which the slow one, by its own times, can do it only twice.
    served = [stepping(10.0 + 0.1 * index, 1.0, 9.0) for index in range(5)]
    with pytest.raises(ValueError, match=r"environment 1 was busy for 47\.50 s of the 10\.00 s that 2 steps"):
        measured(training(10.0, 0), training(15.0, 1), training(20.0, 2), served=[*served, acting(11.0)])
    twice = (training(10.0, 0), training(20.0, 1, seconds=9.0), training(20.5, 2, seconds=9.5))
    with pytest.raises(ValueError, match="the learner was busy for"):
        measured(*twice)


def test_what_other_environments_are_ahead_when_the_steps_end_may_make_it_more_than_1():
    # The slow one decides for all of the ten seconds, and the other has made as many decisions more.
    slow = [stepping(at, 0.0, 4.5) for at in (10.5, 15.5)]
    fast = [stepping(10.0 + at, 0.5) for at in range(6)]
    served = [*slow, *fast, acting(10.0), acting(15.0)]
    result = measured(training(10.0, 0), training(15.0, 1), training(20.0, 2), served=served)
    assert result.overlap_efficiency == pytest.approx(8 / 4 * 10 / 10)


def test_idle_shares_are_of_the_measured_steps_alone():
    idle = measured(*TRAINED).idle
    assert idle["learner"] == pytest.approx(1 - 2.0 / 20)
    assert idle["inference"] == pytest.approx(1 - 4 * 0.5 / 20)
    assert idle["env"] == pytest.approx(1 - ((1 + 1 + 1) + (1 + 3 + 3)) / 2 / 10)


def test_of_real_simulators_and_policies_no_bound_is_known():
    real = replace(TINY, env=None, policy=None)
    result = measured(*TRAINED, served=[acting(13.0)], scenario=real, mode="full")
    assert result.fresh_steps_per_s == 4 * 10 / 10.0
    assert (result.overlap_efficiency, result.own_efficiency, result.bounds_s) == (None, None, {})
    assert (result.collected_per_s, result.chunk_cv) == (None, None)
    assert set(result.idle) == {"inference"}


def test_staleness_is_that_of_the_oldest_action_in_a_step():
    fresh = measured(training(10.0, 0), training(20.0, 1, version=1), training(30.0, 2, version=2))
    assert fresh.staleness_max == 0
    late = measured(training(10.0, 0), training(20.0, 1, version=1), training(30.0, 2, version=0))
    assert late.staleness_max == 2


def test_a_run_that_trained_too_little_is_said_to_have():
    with pytest.raises(ValueError, match="trained 2 micro-batches, fewer than 3 steps of 1"):
        measured(training(10.0, 0), training(20.0, 1))
