import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.shard_fit import fit_shards, rollout_rate, throughput, work_seconds
from rlinf_async.core.shard_times import FirstRollouts, ShardTimes

CHOICES = (2, 4, 8, 16, 32)
SECONDS = st.floats(1e-4, 10.0)


def times(*, shards=64, step_s=0.035, cv=0.3, decisions=32, work_s=0.003, seed=0):
    """Shards whose steps vary, and whose decisions took what one interpreter makes of `work_s`."""
    draw = random.Random(seed)
    steps = [[max(1e-4, draw.gauss(step_s, cv * step_s)) for _ in range(decisions)] for _ in range(shards)]
    rate = throughput(shards, away_s=step_s, work_s=work_s)
    return ShardTimes(resets=[0.0] * shards, steps=steps, decision_s=shards / rate, cpu_s=work_s / 2)


def simulated(customers, *, away_s, work_s, visits=20_000, seed=1):
    """Visits a second of a simulated server with exponential times, one customer at a time."""
    draw, free_at, last = random.Random(seed), 0.0, 0.0
    arrivals = sorted(draw.expovariate(1 / away_s) for _ in range(customers))
    for _ in range(visits):
        begin = max(free_at, arrivals.pop(0))
        free_at = last = begin + draw.expovariate(1 / work_s)
        arrivals = sorted([*arrivals, free_at + draw.expovariate(1 / away_s)])
    return visits / last


@pytest.mark.parametrize("customers", [1, 3, 16, 64])
def test_mean_value_analysis_gives_the_throughput_of_a_simulated_server(customers):
    expected = simulated(customers, away_s=0.1, work_s=0.005)
    assert throughput(customers, away_s=0.1, work_s=0.005) == pytest.approx(expected, rel=0.03)


@given(customers=st.integers(1, 64), away_s=SECONDS, work_s=SECONDS)
def test_throughput_is_below_that_of_an_idle_server_and_of_a_busy_one(customers, away_s, work_s):
    rate = throughput(customers, away_s=away_s, work_s=work_s)
    assert rate <= min(1 / work_s, customers / (away_s + work_s)) * (1 + 1e-9)
    assert rate >= 1 / (away_s + work_s) * (1 - 1e-9)


@given(customers=st.integers(1, 64), away_s=SECONDS, work_s=SECONDS, more=st.floats(1.0, 5.0))
def test_throughput_falls_with_the_work_of_a_decision(customers, away_s, work_s, more):
    less = throughput(customers, away_s=away_s, work_s=work_s * more)
    assert less <= throughput(customers, away_s=away_s, work_s=work_s) * (1 + 1e-9)


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, -1, 1), (1, 0, 0)])
def test_a_server_without_customers_or_times_is_refused(arguments):
    customers, away_s, work_s = arguments
    with pytest.raises(ValueError, match="too small"):
        throughput(customers, away_s=away_s, work_s=work_s)


@given(work_s=st.floats(0.0005, 0.01), answer_s=st.floats(0.0, 0.05))
def test_the_work_of_a_decision_is_found_from_the_measured_throughput(work_s, answer_s):
    measured = times(work_s=work_s, cv=0.0)
    waiting = ShardTimes(
        resets=measured.resets,
        steps=measured.steps,
        decision_s=64 / throughput(64, away_s=0.035 + answer_s, work_s=work_s),
        cpu_s=work_s / 2,
    )
    assert work_seconds(waiting, answer_s) == pytest.approx(work_s, rel=1e-3)


def test_fast_decisions_join_shards_and_slow_ones_leave_them():
    fast = fit_shards([times(step_s=0.035)], answer_s=0.0, choices=CHOICES)
    slow = fit_shards([times(step_s=1.0)], answer_s=0.0, choices=CHOICES)
    assert fast.shards < 64
    assert fast.gain > 1.1
    assert slow.shards == 64


def test_more_work_of_the_interpreter_never_leads_to_more_shards():
    chosen = [
        fit_shards([times(work_s=0.0005 * 2**power)], answer_s=0.01, choices=CHOICES).shards
        for power in range(6)
    ]
    assert all(later <= earlier for earlier, later in pairwise(chosen))
    assert chosen[0] == 64
    assert chosen[-1] <= 8


def test_no_other_number_is_expected_to_be_much_faster_than_the_chosen_one():
    for seed in range(20):
        draw = random.Random(seed)
        measured = times(step_s=draw.uniform(0.01, 2), work_s=draw.uniform(0.001, 0.01), seed=seed)
        fit = fit_shards([measured], answer_s=draw.uniform(0, 0.1), choices=CHOICES)
        most = max(fit.rates.values())
        assert fit.gain >= (0.97 * most if fit.shards != fit.before else most / 1.1 * 0.97)
        assert fit.shards in (*CHOICES, 64)


def test_fewer_shards_of_equal_throughput_are_taken_where_the_interpreter_is_crowded():
    # 32 shards whose interpreter is busy for 0.9 of the time, and for 0.36 of it.
    crowded, idle = times(shards=32, cv=0.08, work_s=0.00115), times(shards=32, cv=0.08, work_s=0.0004)
    of_crowded, of_idle = (fit_shards([one], answer_s=0.0, choices=(16,)) for one in (crowded, idle))
    assert of_crowded.shards == 16
    assert 1.0 <= of_crowded.gain < 1.1
    assert of_idle.shards == 32


def test_a_number_that_does_not_divide_the_present_one_is_never_taken():
    fit = fit_shards([times(shards=6)], answer_s=0.0, choices=(2, 4, 5))
    assert set(fit.rates) == {2, 6}


def test_a_joined_shard_steps_as_long_as_its_slowest_member_and_until_its_longest_rollout_ends():
    measured = ShardTimes(resets=[1.0, 3.0], steps=[[1.0, 5.0], [2.0, 1.0, 4.0]], decision_s=1e9, cpu_s=1e-9)
    away_s = 3.0 + 2.0 + 5.0 + 4.0
    rate = 2 / (away_s + 3 * work_seconds(measured, 0.0))
    assert rollout_rate(measured, 1, 0.0) == pytest.approx(rate)


def test_without_variation_one_shard_does_what_many_do_with_an_idle_interpreter():
    measured = times(cv=0.0, work_s=1e-6)
    assert rollout_rate(measured, 2, 0.0) == pytest.approx(rollout_rate(measured, 64, 0.0), rel=1e-2)


def test_workers_of_unequal_speed_are_fitted_together():
    fast, slow = times(step_s=0.035), times(step_s=1.0)
    both = fit_shards([fast, slow], answer_s=0.0, choices=CHOICES)
    at = {n: sum(rollout_rate(one, n, 0.0) for one in (fast, slow)) for n in (32, 64)}
    assert both.rates[32] == pytest.approx(at[32] / at[64])


def test_a_run_in_which_a_shard_has_not_played_keeps_its_number():
    idle = ShardTimes(resets=[1.0, 0.0], steps=[[1.0], []], decision_s=1.0, cpu_s=0.001)
    assert fit_shards([idle], answer_s=0.0, choices=(1,)) is None
    assert fit_shards([], answer_s=0.0, choices=(1,)) is None


def test_the_first_rollout_of_each_shard_counts_and_the_cpu_time_of_all_decisions():
    first = FirstRollouts(2)
    first.reset(0, 1.0, now=1.0)
    first.step(0, 0.5, now=2.0)
    first.step(0, 0.5, now=4.0)
    first.reset(1, 2.0, now=2.0)
    first.step(1, 0.25, now=2.5)
    first.reset(0, 9.0, now=13.0)
    first.step(0, 9.0, now=22.0)
    measured = first.times(cpu_s=2.0)
    assert measured.resets == [1.0, 2.0]
    assert measured.steps == [[0.5, 0.5], [0.25]]
    assert measured.decision_s == pytest.approx((1.0 + 2.0 + 0.5) / 3)
    assert measured.cpu_s == 0.5


def test_times_without_a_decision_are_no_measure():
    assert not FirstRollouts(1).times(cpu_s=1.0).complete


def test_the_sentence_of_a_fit_names_both_numbers_and_the_times():
    words = str(fit_shards([times()], answer_s=0.02, choices=CHOICES))
    assert words.startswith(
        ("8 shards per env worker follow the 64", "16 shards per env worker follow the 64")
    )
    assert "35 of simulators, 20 of the answer" in words
    kept = str(fit_shards([times(step_s=1.0)], answer_s=0.02, choices=CHOICES))
    assert kept.startswith("64 shards per env worker are kept")
