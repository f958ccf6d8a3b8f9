"""The times of one: of an environment in a shard, and of a call beside others in its process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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


def unshared(began: Sequence[float], ended: Sequence[float]) -> npt.NDArray[np.float64]:
    """Seconds of each call by itself, where calls that overlapped had equal shares of their process.

    Python runs one thread at a time, so that `n` simulators that step in threads at the same time take up to
    `n` times as long as one. Together these seconds are the time in which any call was under way.

    Args:
        began: When each call began, in seconds.
        ended: When each ended, in the same order.
    """
    moments = np.concatenate([began, ended])
    order = np.argsort(moments, kind="stable")
    changes = np.concatenate([np.ones(len(began)), -np.ones(len(ended))])[order]
    at, under_way = moments[order], np.cumsum(changes)[:-1]
    shares = np.divide(np.diff(at), under_way, out=np.zeros(len(under_way)), where=under_way > 0)
    served = np.concatenate([[0.0], np.cumsum(shares)])
    result: npt.NDArray[np.float64] = np.interp(ended, at, served) - np.interp(began, at, served)
    return result


def _sigma(cv: float) -> float:
    return float(np.sqrt(np.log1p(cv * cv)))
