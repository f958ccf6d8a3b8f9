"""Tables of results, on a terminal and in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from rlinf_async.lab.student import student_quantile

MAX_UNBROKEN_WORD = 40
"""Up to this length, words in the first column are not broken, and other columns become narrower instead."""
MIN_RUNS_OF_INTERVAL = 3
"""Fewest runs for an interval: that of two runs is twelve times as wide as their spread, and useless."""


@dataclass(frozen=True)
class Range:
    """One quantity of several runs."""

    middle: float
    """The median of the runs, or their mean."""
    low: float
    high: float
    half: float | None = None
    """Half of the 95 % confidence interval of the mean, by Student's t; None for fewer than
    `MIN_RUNS_OF_INTERVAL` runs."""
    runs: int = 1
    """The number of runs with a known value."""

    @classmethod
    def of(
        cls,
        values: Iterable[float | None],
        middle: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Range | None:
        """Return the range of the known values; None if no value is known."""
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        return cls(middle(numbers), min(numbers), max(numbers), _half(numbers), len(numbers))

    def words(self, unit: str = "") -> str:
        """Return a text such as `3.00 s [2.00, 4.00]`; without the bounds if they are equal."""
        ends = f" [{self.low:.2f}, {self.high:.2f}]" if self.low != self.high else ""
        return f"{self.middle:.2f}{unit}{ends}"


def _half(values: Sequence[float]) -> float | None:
    if len(values) < MIN_RUNS_OF_INTERVAL:
        return None
    return student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def screen(head: Sequence[str], rows: Iterable[Sequence[str]], *, space: int = 0) -> Table:
    """Return a narrow table with right-aligned numbers and `space` between the columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, space, 0, 0))
    rows = list(rows)
    # The name of a row may be pasted into a command, so its words stay whole: other columns get narrower.
    longest = max((len(word) for row in rows for word in row[0].split()), default=0)
    for index, header in enumerate(head):
        least = None if index else min(longest, MAX_UNBROKEN_WORD)
        table.add_column(header, justify="right" if index else "left", overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a table in Markdown; with `numbers`, all columns but the first are right-aligned."""
    rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
