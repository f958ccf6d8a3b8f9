"""What is claimed of what was learned, against the arithmetic written out."""

import json

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from scipy import special

from benchmarks.learning import cells, gains
from benchmarks.learning.preregistration import load
from benchmarks.learning.statistics import above_start, holm, moved, tost_paired
from tests.benchmarks.test_preregistered import LOCAL, results, store  # noqa: F401


def tail(t, freedom):
    """The upper tail of Student's t, by the incomplete beta function."""
    return special.betainc(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def adjusted(p_values):
    """Holm's adjusted p-values, by their definition."""
    count = len(p_values)
    ranks = {place: sorted(range(count), key=p_values.__getitem__).index(place) for place in range(count)}
    return [
        max(
            min(1.0, (count - ranks[other]) * p_values[other])
            for other in range(count)
            if ranks[other] <= ranks[own]
        )
        for own in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_holm_keeps_the_tests_whose_adjusted_p_value_is_at_most_the_level(seed):
    p_values = list(np.random.default_rng(seed).uniform(0, 1, 12) ** 5)
    assert holm(p_values, 0.05) == [p <= 0.05 for p in adjusted(p_values)]


def test_holm_stops_at_the_first_test_that_fails_and_takes_one_as_it_is():
    # 0.04 / 2 fails, so that 0.045 is not looked at, though 0.045 <= 0.05.
    assert holm([0.045, 0.001, 0.04]) == [False, True, False]
    assert holm([0.05]) == [True]
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_p_value_of_a_difference_is_that_of_students_paired_test(seed):
    rng = np.random.default_rng(seed)
    sync = rng.normal(0.7, 0.05, 8)
    other = sync + rng.normal(-0.02, 0.03, 8)
    d = other - sync
    t = abs(d.mean()) / (d.std(ddof=1) / np.sqrt(8))
    assert tost_paired(sync, other, 0.1).p_difference == pytest.approx(2 * tail(t, 7))


def test_a_curve_that_is_moved_has_its_start_for_as_long():
    assert moved([0.1, 0.4, 0.8], 1) == [0.1, 0.1, 0.4]
    assert moved([0.1, 0.4], 5) == [0.1, 0.1]
    assert above_start([0.1, 0.4, 0.7], 0.1) == pytest.approx(0.3)


def learned(setting, losses, **had):
    """Runs that learn 0.3, less a loss in every batch but the first."""
    for seed, loss in zip(setting.seeds, losses, strict=True):
        for side in ("synchronous", "asynchronous"):
            store(setting, seed, side, 0.8 + 0.004 * seed, **had)
            path = setting.path(side, seed)
            run = json.loads(path.read_text())
            if side == "asynchronous":
                run["success"] = [run["success"][0], *(value - loss for value in run["success"][1:])]
            path.write_text(json.dumps(run))


def test_a_gain_is_a_share_of_what_was_learned_and_not_of_what_there_was_before(results):  # noqa: F811
    losses = np.linspace(0.004, 0.012, 10)
    learned(LOCAL[0], losses)
    (gain,) = gains.gains(load())
    # 40 batches: from 0.5 to the level in 20, where it stays.
    levels = 0.8 + 0.004 * np.arange(10)
    unit = np.mean([(level - 0.5) * 0.75 for level in levels])
    d = -losses * 39 / 40 / unit
    half = 1.8331129326536335 * d.std(ddof=1) / np.sqrt(10)  # the 95 % quantile of t with 9 degrees
    assert gain.total.difference == pytest.approx(d.mean())
    assert (gain.total.ci_low, gain.total.ci_high) == pytest.approx((d.mean() - half, d.mean() + half))
    # A batch later, a run has the first batch twice, and not the last.
    late = (levels - 0.5) / 40
    assert gain.beyond_delay.difference == pytest.approx(d.mean() + np.mean(late) / unit)
    assert gain.claim == "less, the same within 5%"


@pytest.mark.parametrize(
    ("losses", "claim"),
    [
        ([0.1 * (-1) ** seed for seed in range(10)], ""),
        ([0.0005 * (-1) ** seed for seed in range(10)], "the same within 5%"),
        ([0.08 + 0.001 * (-1) ** seed for seed in range(10)], "less"),
        ([-0.08 + 0.001 * (-1) ** seed for seed in range(10)], "more"),
    ],
)
def test_what_is_claimed_follows_from_both_tests(results, losses, claim):  # noqa: F811
    learned(LOCAL[0], losses)
    (gain,) = gains.gains(load())
    assert gain.claim == claim
    assert (LOCAL[0].name in gains.page([gain])) == bool(claim)


def test_a_loss_that_others_of_its_group_take_from_it_is_told_as_that(results):  # noqa: F811
    names = ("ppo-1-lag1", "grpo-1-lag1", "ppo-4-lag1")
    settings = [next(one for one in LOCAL if one.name == name) for name in names]
    scattered = [0.1 * (-1) ** seed for seed in range(10)]
    # t = 2.26 of 9 degrees of freedom: p = 0.05 alone, its 90 % interval below zero, not by Holm of three.
    pattern = np.array([1, -1] * 5)
    slight = 0.05 * (pattern + 2.27 / 3 * np.sqrt(10 / 9))
    learned(settings[0], slight)
    for other in settings[1:]:
        learned(other, scattered)
    found = {gain.row.setting.name: gain for gain in gains.gains(load())}
    alone = found["ppo-1-lag1"]
    assert 0.05 / 3 < alone.total.p_difference <= 0.05
    assert alone.claim == "less, before Holm"
    for other in settings[1:]:
        for seed in other.seeds:
            other.path("asynchronous", seed).unlink()
    assert [gain.claim for gain in gains.gains(load())] == ["less"]


def test_the_stored_table_is_that_of_the_stored_runs():
    stored = json.loads((cells.RESULTS_FOLDER / "gains.json").read_text())
    assert [gain.as_json() for gain in gains.gains(load())] == stored
