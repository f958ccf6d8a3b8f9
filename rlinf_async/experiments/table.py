"""Tables of what came out, on a terminal and in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Range:
    """One quantity of several runs."""

    middle: float
    """The median of the runs, or their mean."""
    low: float
    high: float

    @classmethod
    def of(
        cls,
        values: Iterable[float | None],
        middle: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Range | None:
        """The range of the values that are known; None if none is."""
        known = [value for value in values if value is not None]
        return cls(middle(known), min(known), max(known)) if known else None


def screen(head: Sequence[str], rows: Iterable[Sequence[str]], *, space: int = 0) -> Table:
    """A narrow table: numbers to the right, and `space` between the columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, space, 0, 0))
    for index, header in enumerate(head):
        table.add_column(header, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """A table in Markdown, with all columns but the first to the right where they are `numbers`."""
    rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
