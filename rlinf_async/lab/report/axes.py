"""The place of a number along an axis, and the numbers that are written next to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

TICK_COUNT = 5
"""The number of ticks that is aimed at."""
RELATIVE_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, which differ."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    """Values that have a line across the plot, and what is written there."""
    captions: Sequence[tuple[float, str]] = ()
    """Texts outside of the ticks; places are shares of the axis, 0 to 1."""
    log: bool = False

    def place(self, value: float) -> float:
        """The share of the axis that is below `value`; what is outside lies at the end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low)

    def named(self, name: str) -> Axis:
        """The same, with its name in the middle."""
        return replace(self, captions=[(0.5, name)])


def round_axis(
    values: Iterable[float],
    form: Callable[[float], str],
    *,
    low: float | None = None,
    high: float | None = None,
    tight: bool = False,
) -> Axis:
    """An axis of round numbers around `values`, which are some.

    Args:
        form: how a number is written.
        low: where it begins, if not at the least of them; so does `high` with its end.
        tight: whether it ends at the values instead of at round numbers.
    """
    some = list(values)
    first = min(some) if low is None else low
    last = max(some) if high is None else high
    if last - first <= RELATIVE_SLACK * max(abs(first), abs(last), 1e-6):
        margin = abs(last) / 10 or 1.0
        first, last = first - (margin if low is None else 0.0), last + margin
    step = _step((last - first) / TICK_COUNT)
    if not tight:
        first = first if low is not None else math.floor(first / step + RELATIVE_SLACK) * step
        last = last if high is not None else math.ceil(last / step - RELATIVE_SLACK) * step
    count = range(math.ceil(first / step - RELATIVE_SLACK), math.floor(last / step + RELATIVE_SLACK) + 1)
    digits = 3 - math.floor(math.log10(step))
    places = [round(step * each, digits) for each in count]
    return Axis(low=first, high=last, ticks=[(place, form(place)) for place in places])


def log_axis(low: float, high: float, form: Callable[[float], str]) -> Axis:
    """A logarithmic axis with decades, and steps between them where those are few; `0 < low < high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 30 else (1, 2, 5)
    places = [step * 10.0**decade for decade in decades for step in steps]
    within = [place for place in places if low * (1 - RELATIVE_SLACK) <= place <= high * (1 + RELATIVE_SLACK)]
    return Axis(low=low, high=high, ticks=[(place, form(place)) for place in within], log=True)


def categories(names: Sequence[str], *, most: int = 12) -> Axis:
    """One unit for each name, from 0 on; of very many, some are written."""
    every = -(-len(names) // most)
    ticks = [(at + 0.5, name) for at, name in enumerate(names) if at % every == 0]
    return Axis(low=0.0, high=float(max(1, len(names))), ticks=ticks)


def _step(raw: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that is next to `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= raw * (1 - RELATIVE_SLACK))
