"""Rows as a table: on the screen, in Markdown and as comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.table import Table

from rlinf_async.experiments import table
from rlinf_async.experiments.sweep.rows import QUANTITIES, Row
from rlinf_async.experiments.table import Range
from rlinf_async.observe.summary import WINDOW

CAPTION = (
    "env steps/s: environment steps trained for the first time, per second. Of every run the first step is "
    "left out and the means over the others taken; over seeds, the mean (lowest..highest).",
    "over off: of the mean, on the seeds that both have.",
    "rollout s: seconds of a step in which the busiest env shard steps or resets its simulators; its waits "
    "for actions do not count. learner s: those in which the busiest learner rank computes. Where they "
    "overlap, a step is shorter than their sum.",
    f"success: mean of the last {WINDOW} steps.",
)
"""What the columns mean, a paragraph each; what `off` is, each host says for itself."""
HEADERS = ("setting", "env steps/s", "over off", "step s", "rollout s", "learner s", "success")


def screen(rows: Sequence[Row]) -> Table:
    """Fits into 80 columns: headers of two lines, and as little space between them as can be read."""
    return table.screen([header.replace(" ", "\n") for header in HEADERS], map(_cells, rows), space=1)


def markdown(rows: Sequence[Row], *, title: str, off: str) -> str:
    """The table with its title, the failures, what the columns mean and what `off` is."""
    notes = "\n".join(f"* {note}" for note in (*failures(rows), *CAPTION, off))
    return f"# {title}\n\n{table.markdown(HEADERS, map(_cells, rows), numbers=True)}\n\n{notes}\n"


def failures(rows: Sequence[Row]) -> list[str]:
    """A sentence for every run that failed."""
    return [failure for row in rows for failure in row.failures]


def as_csv(rows: Sequence[Row]) -> str:
    """Unrounded; empty where there is nothing. The increase is in per cent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = [f"{name}{end}" for name in QUANTITIES for end in ("", "_min", "_max")]
    writer.writerow(["setting", "seeds", "failed", "increase_percent", *spreads])
    for row in rows:
        values = [value for name in QUANTITIES for value in _plain(row.quantities[name])]
        increase = "" if row.increase is None else 100 * row.increase
        writer.writerow([row.setting, row.seeds, len(row.failures), increase, *values])
    return text.getvalue()


def _cells(row: Row) -> tuple[str, ...]:
    if not row.seeds:
        return (row.setting, "failed" if row.failures else "-", *["-"] * (len(HEADERS) - 2))
    seconds = (row.quantities[name] for name in ("step_s", "rollout_s", "learner_s"))
    return (
        row.setting,
        _spread(row.quantities["env_steps_per_s"]),
        "-" if row.increase is None else f"{row.increase:+.0%}",
        *("-" if one is None else f"{one.middle:.2f}" for one in seconds),
        "-" if (success := row.quantities["success"]) is None else f"{success.middle:.0%}",
    )


def significant(value: float) -> str:
    """With three digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _spread(value: Range | None) -> str:
    if value is None:
        return "-"
    mean, low, high = map(significant, (value.middle, value.low, value.high))
    return mean if low == high else f"{mean} ({low}..{high})"


def _plain(value: Range | None) -> tuple[float | str, ...]:
    return ("", "", "") if value is None else (value.middle, value.low, value.high)
