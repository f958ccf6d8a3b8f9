"""Arithmetic of times: the seconds of each part, counted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Two moments in seconds, from and to; without length when they are equal."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same seconds as disjoint intervals in order, none of them empty, no two of them touching."""
    joined: list[Interval] = []
    for began, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if joined and began <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((began, end))
    return joined


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The seconds that are in both; `a` and `b` as `union` gives them."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        began, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if began < end:
            common.append((began, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The seconds of `a` that are not in `b`; both as `union` gives them."""
    rest: list[Interval] = []
    j = 0
    for began, end in a:
        while j < len(b) and b[j][1] <= began:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if began < b[k][0]:
                rest.append((began, b[k][0]))
            began = max(began, b[k][1])
            k += 1
        if began < end:
            rest.append((began, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    """Seconds, of disjoint intervals."""
    return sum(end - began for began, end in intervals)
