"""The difference in learning between two ways to train, from the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning.statistics import Tost, holm, learned, moved, tost_paired

MARGIN = 0.05
TAIL = 0.025
"""Each side of an interval of 95 %."""
EARLY_BATCHES = 15

Curves = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A comparison of asynchronous runs with synchronous runs of the same seeds."""

    group: str
    name: str
    lag: float
    """Mean age of the trained samples, in policy versions."""
    itself: Tost
    """Against the synchronous curve; `margin` is `MARGIN`, the interval has 95 %."""
    moved: Tost
    """Against the synchronous curve, moved by `batches`."""
    batches: int
    p_not_worse: float
    """One-sided p-value of a paired t-test against a loss of `MARGIN` or more."""
    early: float
    """The difference over the first `EARLY_BATCHES` batches, as a share of the learning in these."""

    @property
    def words(self) -> str:
        """The claim that the interval against the synchronous curve itself allows."""
        low, high = self.itself.ci_low or 0.0, self.itself.ci_high or 0.0
        if high < -MARGIN:
            return f"less, by more than {MARGIN:.0%}"
        loss = ["less"] if high < 0 else ["more"] if low > 0 else []
        loss += [f"not below -{MARGIN:.0%}"] if low > -MARGIN else []
        return ", ".join(loss) or "unknown"

    def as_json(self) -> dict[str, Any]:
        """Return the row of evidence.json; differences are shares."""
        return {
            "group": self.group,
            "setting": self.name,
            "seeds": self.itself.pairs,
            "lag": round(self.lag, 2),
            **_numbers(self.itself, ""),
            **_numbers(self.moved, "moved_"),
            "moved_by": self.batches,
            "p_not_worse": round(self.p_not_worse, 5),
            "early": round(self.early, 5),
            "words": self.words,
        }


def finding(group: str, name: str, sync: Curves, other: Curves, *, lag: float, batches: int = 1) -> Finding:
    """Compare success curves that are paired by seed; `batches` moves the synchronous ones."""
    base, later, found = learned(sync, [moved(curve, batches) for curve in sync], other)
    early_base, early_other = learned(*([curve[:EARLY_BATCHES] for curve in side] for side in (sync, other)))
    differences = np.subtract(found, base)
    return Finding(
        group=group,
        name=name,
        lag=lag,
        itself=tost_paired(base, found, MARGIN, TAIL),
        moved=tost_paired(later, found, MARGIN, TAIL),
        batches=batches,
        p_not_worse=float(stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue),
        early=float(np.mean(early_other) - np.mean(early_base)),
    )


def _numbers(test: Tost, prefix: str) -> dict[str, float]:
    values = {"difference": test.difference, "ci_low": test.ci_low, "ci_high": test.ci_high}
    return {f"{prefix}{name}": round(float(value or 0.0), 5) for name, value in values.items()}


def not_worse(found: Sequence[Finding]) -> list[bool]:
    """Return which findings exclude a loss of `MARGIN` by Holm over all of them, one-sided at `TAIL`."""
    return holm([one.p_not_worse for one in found], TAIL)
