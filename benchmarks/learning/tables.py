"""Markdown tables, and the formats of numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.learning import cells
from benchmarks.learning.statistics import Tost
from rlinf_async.lab import table

NO_VALUE = "–"


def write(name: str, *parts: str) -> Path:
    """Write a file of `results/` from parts that each begin on a new line; return its path."""
    cells.RESULTS_FOLDER.mkdir(parents=True, exist_ok=True)
    path = cells.RESULTS_FOLDER / name
    path.write_text("\n".join(parts))
    return path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or without rows the line "No results yet."."""
    lines = list(rows)
    return f"{table.markdown(head, lines)}\n" if lines else "No results yet.\n"


def number(value: float | None, digits: int = 3) -> str:
    return NO_VALUE if value is None else f"{value:.{digits}f}"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def percent(value: float) -> str:
    return f"{value:.0%}"


def thousands(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.0f}"


def ratio(first: float | None, second: float | None) -> str:
    return NO_VALUE if first is None or not second else f"{first / second:.2f}"


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation between seeds; the mean alone for one seed."""
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else mean


def interval(tost: Tost) -> str:
    if tost.ci_low is None or tost.ci_high is None:
        return NO_VALUE
    return f"[{signed(tost.ci_low)}, {signed(tost.ci_high)}]"


def share(tost: Tost | None) -> str:
    """Return a difference in per cent, with its interval if there is one."""
    if tost is None:
        return NO_VALUE
    if tost.ci_low is None or tost.ci_high is None:
        return f"{tost.difference:+.1%}"
    return f"{tost.difference:+.1%} [{tost.ci_low:+.1%}, {tost.ci_high:+.1%}]"


def listing(title: str, names: Sequence[str]) -> str:
    """Return a folded list of names under a title with their number; empty without names."""
    if not names:
        return ""
    lines = "\n".join(f"* `{name}`" for name in names)
    return f"\n<details><summary>{title}: {len(names)}</summary>\n\n{lines}\n\n</details>\n"


def publish(page: Path, begin: str, end: str, text: str) -> None:
    """Put `text` into `page`, between the marks `begin` and `end`.

    Raises:
        ValueError: the page has no such marks.
    """
    before, mark, rest = page.read_text().partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark:
        raise ValueError(f"{page} has no place for the table, between {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}{end}{after}")
