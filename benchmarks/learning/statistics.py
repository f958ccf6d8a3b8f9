"""Measures of a training curve, and tests of the equivalence of two ways to train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import stats

from benchmarks.learning.cells import Curve

TEST_LEVEL = 0.05
"""Level of each of the two one-sided tests; so their interval is one of 90 %."""

WINDOW_BATCHES = 4
"""Batches of a moving mean: 128 episodes, with an uncertainty of the success rate of about 4 %."""


def area_under_curve(curve: Curve) -> float:
    """Return the success averaged over env steps: the share of all trained episodes that succeeded.

    Each batch counts by its env steps. For batches of equal size, as in the experiments, this is the plain
    mean over batches; no values are interpolated.
    """
    return float(np.average(curve.success, weights=np.diff(curve.env_steps, prepend=0)))


def delayed(curve: Curve, batches: int) -> Curve:
    """Return the curve of a run that learns as well as this one, but `batches` batches later.

    This is the least cost of a lag: batches collected before the first update show no learning.
    """
    return replace(curve, success=moved(curve.success, batches))


def final_success(curve: Curve) -> float:
    """Return the mean success over the last `WINDOW_BATCHES` batches, or over all if there are fewer."""
    return float(np.mean(curve.success[-WINDOW_BATCHES:]))


def moving_mean(values: Sequence[float], window: int = WINDOW_BATCHES) -> np.ndarray:
    """Return the means over the last `window` values, at the beginning over fewer."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def seconds_to(curve: Curve, level: float, window: int = WINDOW_BATCHES) -> float | None:
    """Return the seconds until `window` batches in a row have a mean success of at least `level`; None:
    never.
    """
    batch = batch_at(curve.success, level, window)
    return None if batch is None else float(curve.seconds[batch])


def env_steps_to(curve: Curve, level: float) -> int | None:
    """Return the env steps until the success of `seconds_to`; None: never."""
    batch = batch_at(curve.success, level)
    return None if batch is None else int(curve.env_steps[batch])


def batch_at(success: Sequence[float], level: float, window: int = WINDOW_BATCHES) -> int | None:
    """Return the first batch that ends `window` batches of mean success at least `level`; None: never."""
    # Sums are differences of sums: without the slack, 0.8 four times would miss 0.8.
    reached = np.flatnonzero(moving_mean(success, window)[window - 1 :] >= level - 1e-9)
    return int(reached[0]) + window - 1 if reached.size else None


def median(values: Sequence[float | None]) -> float | None:
    """Return the median; None counts as later than every value, and without values None is returned."""
    if not values:
        return None
    middle = float(np.median([math.inf if value is None else value for value in values]))
    return None if math.isinf(middle) else middle


@dataclass(frozen=True, kw_only=True)
class Tost:
    """Two one-sided t-tests of paired differences, full - sync (Schuirmann 1987)."""

    pairs: int
    sync_mean: float
    full_mean: float
    difference: float
    ci_low: float | None
    """Bounds of the interval of 1 - 2 alpha; None with fewer than two pairs."""
    ci_high: float | None
    margin: float
    p_value: float | None
    """The larger of the two tests' p-values."""
    p_difference: float | None
    """Two-sided p-value of a paired t-test against the hypothesis of no difference."""

    @property
    def equivalent(self) -> bool:
        """True if the interval lies inside (-margin, margin), that is, p < alpha."""
        return self.verdict == "equivalent"

    @property
    def verdict(self) -> str:
        """`equivalent`, `better`, `worse`, `undecided` (no evidence of a difference), or `too few pairs`."""
        if self.ci_low is None or self.ci_high is None:
            return "too few pairs"
        if -self.margin < self.ci_low and self.ci_high < self.margin:
            return "equivalent"
        if self.ci_low >= self.margin:
            return "better"
        return "worse" if self.ci_high <= -self.margin else "undecided"


def tost_paired(
    sync: Sequence[float], full: Sequence[float], margin: float, alpha: float = TEST_LEVEL
) -> Tost:
    """Test that the mean of full - sync lies strictly inside (-margin, margin).

    The null hypothesis is that it lies outside, so that few or noisy pairs cannot pass for equivalence.
    Source: D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach
    for assessing the equivalence of average bioavailability", J. Pharmacokinet. Biopharm. 15 (1987).

    Raises:
        ValueError: there are no pairs, or the two sides have different numbers of values.
    """
    if len(sync) != len(full) or not len(sync):
        raise ValueError(f"{len(sync)} and {len(full)} values are not pairs")
    differences = np.subtract(full, sync)
    mean = float(differences.mean())
    low = high = p_value = p_difference = None
    if len(differences) > 1:
        error = float(stats.sem(differences))
        freedom = len(differences) - 1
        half = float(stats.t.ppf(1 - alpha, freedom)) * error
        low, high = mean - half, mean + half
        p_value = max(_beyond(mean + margin, error, freedom), _beyond(margin - mean, error, freedom))
        p_difference = min(1.0, 2 * _beyond(abs(mean), error, freedom))
    return Tost(
        pairs=len(differences),
        sync_mean=float(np.mean(sync)),
        full_mean=float(np.mean(full)),
        difference=mean,
        ci_low=low,
        ci_high=high,
        margin=margin,
        p_value=p_value,
        p_difference=p_difference,
    )


def area(success: Sequence[float]) -> float:
    """Return the success averaged over batches of equal size."""
    return float(np.mean(success))


def final(success: Sequence[float], share: float) -> float:
    """Return the success averaged over the last `share` of the batches."""
    return float(np.mean(success[-max(1, round(len(success) * share)) :]))


def one_batch(success: Sequence[float]) -> float:
    """Return the loss of a curve's area if everything is learned one batch later, as a share of the area."""
    return float((success[-1] - success[0]) / np.sum(success)) if np.sum(success) else 0.0


MEASURE_NAMES = ("area", "final")


def compared(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    margin: float,
    final_share: float,
    unit: Sequence[Sequence[float]] | None = None,
    alpha: float = TEST_LEVEL,
) -> dict[str, Tost]:
    """Test area and final success of pairs of success curves; return the tests by measure.

    Values are shares of the mean of the curves `unit`, by default `before`. Without pairs, or if that mean is
    not above 0, there are no tests.
    """
    found = {}
    measures: Sequence[Callable[[Sequence[float]], float]] = (area, partial(final, share=final_share))
    for name, measure in zip(MEASURE_NAMES, measures, strict=True):
        mean = sum(map(measure, before if unit is None else unit)) / max(1, len(before))
        if mean > 0:
            first, second = ([measure(curve) / mean for curve in side] for side in (before, after))
            found[name] = tost_paired(first, second, margin, alpha)
    return found if len(found) == len(MEASURE_NAMES) else {}


def holm(p_values: Sequence[float], alpha: float = TEST_LEVEL) -> list[bool]:
    """Return for each test if it is significant, with a family-wise error rate of `alpha`.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    significant = [False] * len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] > alpha / (len(p_values) - rank):
            break
        significant[place] = True
    return significant


def moved(success: Sequence[float], batches: int) -> list[float]:
    """Return the success curve of a run that learns exactly as well, but `batches` batches later."""
    return [success[max(0, batch - batches)] for batch in range(len(success))]


def above_start(success: Sequence[float], start: float) -> float:
    """Return the area above `start`: the gain in success, averaged over the batches of a run."""
    return float(np.mean(success)) - start


def learned(sync: Sequence[Sequence[float]], *others: Sequence[Sequence[float]]) -> tuple[list[float], ...]:
    """Return the areas above the start by seed, of synchronous curves and of others.

    The start is the first value of the seed's synchronous curve. Areas are shares of the mean synchronous
    area.
    """
    areas = [
        np.array([above_start(curve, base[0]) for curve, base in zip(curves, sync, strict=True)])
        for curves in (sync, *others)
    ]
    return tuple((area / areas[0].mean()).tolist() for area in areas)


def _beyond(distance: float, error: float, freedom: int) -> float:
    """Return the one-sided p-value of a distance inside a bound; 0 or 1 if there is no spread."""
    if not error:
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, freedom))
