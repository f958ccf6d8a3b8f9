"""Outliers among importance weights: how many are left out (M2PO, arXiv 2510.01161)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rlinf_async.core.scored import LOG_BOUND

MAX_SECOND_MOMENT = 0.04
"""Mean square of the log-ratios that are left: the paper's."""
STEPS = 50
"""Halvings of the range of the cut, more than float64 tells apart."""
ROUNDING = 1e-6
"""Share of a log-ratio by which float32 may be off, and a little more."""


def outlier_cut(
    log_ratios: torch.Tensor,
    summed: Callable[[dict[str, float]], dict[str, float]],
    *,
    most: float = MAX_SECOND_MOMENT,
) -> float:
    """Return the size of a log-ratio beyond which samples are left out, or infinity if all may stay.

    It is the largest with which the mean square of those that stay is at most `most`. Every rank finds the
    same, as it follows from sums alone.

    Args:
        log_ratios: of this rank's samples that count, flat.
        summed: adds each number over all ranks.
    """
    squares = log_ratios.detach().double().clamp(-LOG_BOUND, LOG_BOUND).square()

    def within(cut: float) -> bool:
        kept = squares[squares <= cut]
        total = summed({"squares": float(kept.sum()), "count": float(kept.numel())})
        return total["squares"] <= most * total["count"]

    largest = LOG_BOUND**2
    if within(largest):
        return math.inf
    # Of numbers up to `most` the mean is at most that.
    low, high = most, largest
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    # The next sample is just above, and whoever compares does so in float32.
    return math.sqrt(low) * (1 - ROUNDING)
