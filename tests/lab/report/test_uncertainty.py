"""The comparison of two runs, against NumPy and SciPy, and by how often its interval holds the truth."""

import numpy as np
import pytest

from rlinf_async.lab.report.uncertainty import LEAST_STEPS, Rate, times

scipy_stats = pytest.importorskip("scipy.stats", reason="the independent computation needs SciPy")


def lines(seconds, env_steps=320.0):
    """Metrics of a first step and of steps of these lengths."""
    return [
        {"step": number, "async/step_seconds": float(took), "async/env_steps": env_steps}
        for number, took in enumerate([100.0, *seconds], start=1)
    ]


def by_numpy(run, first, env_steps=320.0):
    """The ratio of rates and its 95 % interval: the delta method on blocks, and Welch's t."""
    logs, variances, freedoms = [], [], []
    for seconds in (run, first):
        count = min(20, len(seconds) // 2)
        blocks = np.split(np.asarray(seconds), [len(seconds) * at // count for at in range(1, count)])
        made = np.array([env_steps * len(block) for block in blocks])
        took = np.array([block.sum() for block in blocks])
        rate = made.sum() / took.sum()
        logs.append(np.log(rate))
        variances.append(np.var(made - rate * took, ddof=1) / count / made.mean() ** 2)
        freedoms.append(count - 1)
    freedom = sum(variances) ** 2 / sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
    half = scipy_stats.t.ppf(0.975, max(1, int(freedom))) * np.sqrt(sum(variances))
    middle = logs[0] - logs[1]
    return np.exp([middle, middle - half, middle + half])


@pytest.mark.parametrize("counts", [(8, 8), (11, 9), (12, 13)])
def test_ratio_and_interval_are_those_of_the_delta_method_over_blocks_of_steps(counts):
    chance = np.random.default_rng(sum(counts))
    run, first = (chance.normal(mean, 1.0, count) for mean, count in zip((8, 12), counts, strict=True))
    found = times(lines(run), lines(first))
    assert [found.value, found.low, found.high] == pytest.approx(by_numpy(run, first), rel=1e-3)


def test_the_interval_holds_the_true_ratio_about_nineteen_times_of_twenty():
    chance = np.random.default_rng(0)
    held = 0
    for _ in range(600):
        run, first = (mean * chance.lognormal(0.0, 0.2, 14) for mean in (1.0, 1.6))
        found = times(lines(run), lines(first))
        held += found.low <= 1.6 <= found.high
    assert 0.92 < held / 600 <= 0.99


def test_few_steps_say_nothing_and_the_first_is_none_of_them():
    enough, few = [lines(np.full(count, 2.0)) for count in (LEAST_STEPS - 1, LEAST_STEPS - 2)]
    assert times(few, enough) is None
    assert times(enough, few) is None
    assert times(enough, enough).value == 1.0
    assert Rate.of(enough).value == 160.0


def test_steps_that_a_run_made_early_do_not_exclude_what_it_made_later():
    """Five and six steps were once told as 1.1 and 0.76 times as fast."""
    chance = np.random.default_rng(7)
    run, first = (chance.lognormal(np.log(6.0), 0.35, 24) for _ in range(2))
    last = times(lines(run), lines(first)).value
    for count in range(1, 25):
        found = times(lines(run[:count]), lines(first[:count]))
        assert found is None or found.low <= last <= found.high


@pytest.mark.parametrize("damaged", [[], [{}] * 20, lines(np.zeros(20)), lines(np.ones(20), env_steps=0.0)])
def test_records_without_times_or_environment_steps_have_no_rate(damaged):
    assert Rate.of(damaged) is None
