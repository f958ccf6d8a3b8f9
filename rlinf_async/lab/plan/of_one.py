"""From how long the slowest of several environments takes to how long one of them does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_async.lab.virtual.simulators import DurationDraws

SAMPLE_COUNT = 4000
MAX_SPREAD = 3.0
"""The largest spread (deviation over mean of one environment) that is looked for."""


def of_one(seconds: Sequence[float], size: int, *, in_turn: bool = False) -> DurationDraws:
    """Return the distribution of one environment's time, from measured seconds of shards of `size` of
    them.

    A shard waits for the slowest, or steps its environments `in_turn`. One is taken to be log-normal: the
    mean and the spread of the slowest of `size`, or of their sum, then tell its own. With a `size` of 1 the
    measurements are kept.
    """
    if size == 1:
        return DurationDraws.of(seconds)
    if in_turn:
        whole = DurationDraws.of(seconds)
        return DurationDraws(mean=whole.mean / size, cv=whole.cv * size**0.5)
    mean, wanted = float(np.mean(seconds)), float(np.std(seconds) / np.mean(seconds))
    normal = np.random.default_rng(0).standard_normal((SAMPLE_COUNT, size)).max(axis=1)
    low, high = 0.0, MAX_SPREAD
    for _ in range(40):
        middle = (low + high) / 2
        slowest = np.exp(_sigma(middle) * normal)
        low, high = (middle, high) if float(np.std(slowest) / np.mean(slowest)) < wanted else (low, middle)
    sigma = _sigma(low)
    return DurationDraws(mean=mean / float(np.mean(np.exp(sigma * normal - sigma * sigma / 2))), cv=low)


def _sigma(cv: float) -> float:
    return float(np.sqrt(np.log1p(cv * cv)))
