"""Markdown tables and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.learning import cells
from benchmarks.learning.statistics import Tost
from rlinf_async.lab import table

NOTHING = "–"


def write(name: str, *parts: str) -> Path:
    """A file of `results/` from its parts, each on lines of its own."""
    cells.RESULTS.mkdir(parents=True, exist_ok=True)
    path = cells.RESULTS / name
    path.write_text("\n".join(parts))
    return path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or a line that says that there is nothing to show."""
    lines = list(rows)
    return f"{table.markdown(head, lines)}\n" if lines else "No results yet.\n"


def number(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def percent(value: float) -> str:
    return f"{value:.0%}"


def thousands(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def ratio(first: float | None, second: float | None) -> str:
    return NOTHING if first is None or not second else f"{first / second:.2f}"


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation between seeds; the mean alone for one seed."""
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else mean


def interval(tost: Tost) -> str:
    if tost.ci_low is None or tost.ci_high is None:
        return NOTHING
    return f"[{signed(tost.ci_low)}, {signed(tost.ci_high)}]"


def share(tost: Tost | None) -> str:
    """A difference in per cent, with its interval where it has one."""
    if tost is None:
        return NOTHING
    if tost.ci_low is None or tost.ci_high is None:
        return f"{tost.difference:+.1%}"
    return f"{tost.difference:+.1%} [{tost.ci_low:+.1%}, {tost.ci_high:+.1%}]"


def listing(title: str, names: Sequence[str]) -> str:
    """What is missing, folded away where it is long."""
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
