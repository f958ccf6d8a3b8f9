"""Quantiles of Student's t, without SciPy."""

from __future__ import annotations

STUDENT_QUANTILES = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
)
"""Quantiles of Student's t at 97.5 %, from one degree of freedom on; beyond the table, the last counts."""


def student_quantile(freedom: float) -> float:
    """Return the quantile of Student's t at 97.5 %, for `freedom` rounded down, at least 1."""
    return STUDENT_QUANTILES[max(1, int(min(freedom, len(STUDENT_QUANTILES)))) - 1]
