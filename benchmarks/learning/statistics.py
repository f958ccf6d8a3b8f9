"""What a training curve is reduced to, and the test of whether two ways to train are equivalent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import stats

from benchmarks.learning.cells import Curve

ALPHA = 0.05
"""Level of each of the two one-sided tests; their interval is therefore one of 90 %."""

WINDOW = 4
"""Batches in a moving mean: 128 episodes, whose share of successes is uncertain by about 4 %."""


def area_under_curve(curve: Curve) -> float:
    """Success averaged over env steps: the share of all trained episodes that succeeded.

    Each batch counts by the env steps it took. Batches of one size, which is what the experiments have,
    make this the plain mean over batches; no value is interpolated between them.
    """
    return float(np.average(curve.success, weights=np.diff(curve.env_steps, prepend=0)))


def delayed(curve: Curve, batches: int) -> Curve:
    """The curve of a run that learns as well as this one, each thing `batches` batches later.

    That is the least a lag can cost: the batches that are acted before the first update show nothing.
    """
    return replace(curve, success=moved(curve.success, batches))


def final_success(curve: Curve) -> float:
    """Success over the last `WINDOW` batches, or over all if there are fewer."""
    return float(np.mean(curve.success[-WINDOW:]))


def moving_mean(values: Sequence[float], window: int = WINDOW) -> np.ndarray:
    """Means over the last `window` values; over those that there are at the beginning."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def seconds_to(curve: Curve, level: float, window: int = WINDOW) -> float | None:
    """Wall-clock until the mean success of `window` batches in a row is at least `level`; None: never."""
    batch = batch_at(curve.success, level, window)
    return None if batch is None else float(curve.seconds[batch])


def env_steps_to(curve: Curve, level: float) -> int | None:
    """As `seconds_to`, in env steps."""
    batch = batch_at(curve.success, level)
    return None if batch is None else int(curve.env_steps[batch])


def batch_at(success: Sequence[float], level: float, window: int = WINDOW) -> int | None:
    """The first batch that ends `window` in a row whose mean success is at least `level`; None: never."""
    # Sums are differences of sums: without the slack, 0.8 four times would miss 0.8.
    reached = np.flatnonzero(moving_mean(success, window)[window - 1 :] >= level - 1e-9)
    return int(reached[0]) + window - 1 if reached.size else None


def median(values: Sequence[float | None]) -> float | None:
    """The median where None is later than everything; None if that is the median, or nothing is given."""
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
    """The interval of 1 - 2 alpha; None where fewer than two pairs give no spread."""
    ci_high: float | None
    margin: float
    p_value: float | None
    """The larger of the two tests' p-values."""
    p_difference: float | None
    """Two-sided p-value of a paired t-test that there is no difference."""

    @property
    def equivalent(self) -> bool:
        """Whether the interval lies inside (-margin, margin), which is the same as p < alpha."""
        return self.verdict == "equivalent"

    @property
    def verdict(self) -> str:
        """Equivalent, or why not: 'undecided' is no evidence of a difference."""
        if self.ci_low is None or self.ci_high is None:
            return "too few pairs"
        if -self.margin < self.ci_low and self.ci_high < self.margin:
            return "equivalent"
        if self.ci_low >= self.margin:
            return "better"
        return "worse" if self.ci_high <= -self.margin else "undecided"


def tost_paired(sync: Sequence[float], full: Sequence[float], margin: float, alpha: float = ALPHA) -> Tost:
    """Test that the mean of full - sync lies strictly inside (-margin, margin).

    The null hypothesis is that it does not, so that few or noisy pairs cannot pass for equivalence.
    Source: D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach
    for assessing the equivalence of average bioavailability", J. Pharmacokinet. Biopharm. 15 (1987).

    Raises:
        ValueError: no pairs, or not as many values on one side as on the other.
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
    """Success averaged over batches of one size."""
    return float(np.mean(success))


def final(success: Sequence[float], share: float) -> float:
    """Success averaged over the last `share` of the batches."""
    return float(np.mean(success[-max(1, round(len(success) * share)) :]))


def one_batch(success: Sequence[float]) -> float:
    """What a curve's area loses if everything is learned one batch later, as a share of it."""
    return float((success[-1] - success[0]) / np.sum(success)) if np.sum(success) else 0.0


MEASURES = ("area", "final")


def compared(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    margin: float,
    final_share: float,
    unit: Sequence[Sequence[float]] | None = None,
    alpha: float = ALPHA,
) -> dict[str, Tost]:
    """Tests of the area and the final success of pairs of success curves, by measure.

    Values are shares of the mean of `unit`, curves of other runs, or else of `before`. Of no pair, or where
    nothing was learned that they could be shares of, there is no test.
    """
    found = {}
    measures: Sequence[Callable[[Sequence[float]], float]] = (area, partial(final, share=final_share))
    for name, measure in zip(MEASURES, measures, strict=True):
        mean = sum(map(measure, before if unit is None else unit)) / max(1, len(before))
        if mean > 0:
            first, second = ([measure(curve) / mean for curve in side] for side in (before, after))
            found[name] = tost_paired(first, second, margin, alpha)
    return found if len(found) == len(MEASURES) else {}


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Say of each test whether it is significant, all of them together at `alpha`.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    significant = [False] * len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] > alpha / (len(p_values) - rank):
            break
        significant[place] = True
    return significant


def moved(success: Sequence[float], batches: int) -> list[float]:
    """The success of a run that learns exactly as well as one of this success, `batches` batches later."""
    return [success[max(0, batch - batches)] for batch in range(len(success))]


def above_start(success: Sequence[float], start: float) -> float:
    """The area above `start`: what was learned, averaged over the batches of a run."""
    return float(np.mean(success)) - start


def learned(sync: Sequence[Sequence[float]], *others: Sequence[Sequence[float]]) -> tuple[list[float], ...]:
    """The areas above the start by seed, of synchronous curves and of others.

    Each starts where the synchronous curve of its seed does, and is a share of the mean synchronous area.
    """
    areas = [
        np.array([above_start(curve, base[0]) for curve, base in zip(curves, sync, strict=True)])
        for curves in (sync, *others)
    ]
    return tuple((area / areas[0].mean()).tolist() for area in areas)


def _beyond(distance: float, error: float, freedom: int) -> float:
    """One-sided p-value of a distance inside a bound; without any spread it is certain."""
    if not error:
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, freedom))
