"""How much faster one run was than another, with an interval from the spread over their steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.lab.student import student_quantile

LEAST_BLOCKS = 4
"""Fewest blocks of steps of which a spread is taken."""
MOST_BLOCKS = 20
LEAST_BLOCK_STEPS = 2
"""Neighbouring steps are alike, so that a block has several."""
LEAST_STEPS = LEAST_BLOCKS * LEAST_BLOCK_STEPS + 1
"""Fewest steps of a run for an interval; the first, which fills the pipeline, is left out."""

Line = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Fresh environment steps a second, and the relative error of that by the spread over blocks of steps."""

    value: float
    error: float
    blocks: int

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Rate | None:
        """Return the rate of the steps after the first; None if these are too few for an error.

        The rate is a ratio of sums, and its error that of a ratio: by the spread of what each block has more
        environment steps than the rate would give it (W. G. Cochran, "Sampling Techniques", section 2.11).
        """
        timed = [line for line in lines if line.get("async/step_seconds", 0.0) > 0][1:]
        count = min(MOST_BLOCKS, len(timed) // LEAST_BLOCK_STEPS)
        if count < LEAST_BLOCKS:
            return None
        blocks = [timed[len(timed) * at // count : len(timed) * (at + 1) // count] for at in range(count)]
        pairs = [
            (
                sum(line.get("async/env_steps", 0.0) for line in block),
                sum(line["async/step_seconds"] for line in block),
            )
            for block in blocks
        ]
        env_steps = statistics.fmean(made for made, _ in pairs)
        rate = env_steps / statistics.fmean(took for _, took in pairs)
        if not rate:
            return None
        spread = statistics.stdev(made - rate * took for made, took in pairs)
        return cls(value=rate, error=spread / math.sqrt(count) / env_steps, blocks=count)


@dataclass(frozen=True, kw_only=True)
class Times:
    """How many times as fast one run was as another, with an interval of 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, run: Rate, first: Rate) -> Times:
        """Return the ratio of two rates; the interval is Welch's for the difference of their logarithms."""
        variances = [run.error**2, first.error**2]
        weights = [v**2 / (each.blocks - 1) for v, each in zip(variances, (run, first), strict=True)]
        freedom = sum(variances) ** 2 / sum(weights) if sum(weights) else math.inf
        half = student_quantile(freedom) * math.sqrt(sum(variances))
        ratio = run.value / first.value
        return cls(value=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half))

    @property
    def differs(self) -> bool:
        """True if the interval does not hold 1."""
        return not self.low <= 1 <= self.high

    def in_words(self) -> str:
        return f"{_number(self.value)} [{_number(self.low)}, {_number(self.high)}]"


def times(run: Sequence[Line], first: Sequence[Line]) -> Times | None:
    """Return how many times as fast `run` was as `first`, from their metrics; None with too few steps."""
    rates = Rate.of(run), Rate.of(first)
    return None if rates[0] is None or rates[1] is None else Times.of(rates[0], rates[1])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"
