"""Rows as a table: on the screen, in Markdown and as comma-separated values."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from rich.table import Table

from rlinf_async.lab import table
from rlinf_async.lab.sweep.rows import QUANTITY_NAMES, Row
from rlinf_async.lab.sweep.settings import short
from rlinf_async.lab.sweep.steps import DEFAULT_GOAL
from rlinf_async.lab.table import Range
from rlinf_async.observe.summary import SUCCESS_WINDOW_STEPS

TABLE_CAPTION = (
    "env steps/s: environment steps trained for the first time, per second. Of every run the first step is "
    "left out and the means over the others taken; over seeds, the mean.",
    "over off: of the mean, on the seeds that both have.",
    "rollout s: seconds of a step in which the busiest env shard steps or resets its simulators; its waits "
    "for actions do not count. learner s: those in which the busiest learner rank computes. Where they "
    "overlap, a step is shorter than their sum.",
    f"success: mean of the last {SUCCESS_WINDOW_STEPS} steps. s to, steps to: seconds and environment "
    "steps until the mean "
    f"of {SUCCESS_WINDOW_STEPS} steps is that rate; '1 of 3' where only some seeds come so far.",
    "n: seeds. Means of three seeds and more are with their 95 % interval by Student's t, of two with their "
    "range.",
)
"""The meaning of the columns, a paragraph each; that of `off` is each host's own."""
LAST_COLUMNS = (
    "env steps/s",
    "over off",
    "step s",
    "rollout s",
    "learner s",
    "success",
    "s to",
    "steps to",
    "n",
)


def headers(rows: Sequence[Row], goal: float) -> tuple[str, ...]:
    """The setting, a column for each key that is varied, and what came out."""
    last = (f"{one} {goal:.0%}" if one.endswith(" to") else one for one in LAST_COLUMNS)
    return ("setting", *map(short, _keys(rows)), *last)


def screen(rows: Sequence[Row], *, goal: float = DEFAULT_GOAL) -> Table:
    """Fits into 80 columns where nothing is varied: headers of few lines, and little space between them.

    Of the time to a success rate, and the seconds of rollouts and learner, it has the first if a run has
    come so far, and otherwise the second; the other tables have both.
    """
    heads, lines = headers(rows, goal), _lines(rows)
    reached = any(row.quantities["seconds_to_goal"] for row in rows)
    left_out = ("rollout s", "learner s") if reached else (f"s to {goal:.0%}", f"steps to {goal:.0%}")
    columns = [column for column, head in enumerate(heads) if head not in left_out]
    titles = [heads[column].replace(" ", "\n", 1).replace("_", "_\n") for column in columns]
    return table.screen(titles, [[line[column] for column in columns] for line in lines], space=1)


def markdown(rows: Sequence[Row], *, title: str, off: str, goal: float = DEFAULT_GOAL) -> str:
    """The table with its title, the failures, what the columns mean and what `off` is."""
    notes = "\n".join(f"* {note}" for note in (*failures(rows), *TABLE_CAPTION, off))
    text = table.markdown(headers(rows, goal), _lines(rows), numbers=True)
    return f"# {title}\n\n{text}\n\n{notes}\n"


def latex(rows: Sequence[Row], *, goal: float = DEFAULT_GOAL) -> str:
    """A `tabular` for a paper, with the rules of booktabs."""
    heads = headers(rows, goal)
    lines = [" & ".join(map(_tex, cells)) + r" \\" for cells in (heads, *_lines(rows))]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    return f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n{body}\n\\end{{tabular}}\n"


def failures(rows: Sequence[Row]) -> list[str]:
    """A sentence for every run that failed."""
    return [failure for row in rows for failure in row.failures]


def as_csv(rows: Sequence[Row]) -> str:
    """Unrounded; empty where there is nothing. The increase is in per cent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = _keys(rows)
    spreads = [f"{name}{end}" for name in QUANTITY_NAMES for end in ("", "_min", "_max", "_ci95", "_n")]
    writer.writerow(["setting", *keys, "seeds", "failed", "increase_percent", *spreads])
    for row in rows:
        values = [value for name in QUANTITY_NAMES for value in _plain(row.quantities[name])]
        increase = "" if row.increase is None else 100 * row.increase
        varied = [row.values.get(key, "") for key in keys]
        writer.writerow([row.setting, *varied, row.seeds, len(row.failures), increase, *values])
    return text.getvalue()


def _keys(rows: Sequence[Row]) -> list[str]:
    """Return the varied keys, in the order in which they were asked for."""
    return list(dict.fromkeys(key for row in rows for key in row.values))


def _lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    keys = _keys(rows)
    return [(row.setting, *(row.values.get(key, "-") for key in keys), *_cells(row)) for row in rows]


def _cells(row: Row) -> tuple[str, ...]:
    if not row.seeds:
        return ("failed" if row.failures else "-", *["-"] * (len(LAST_COLUMNS) - 2), "0")
    seconds = (row.quantities[name] for name in ("step_s", "rollout_s", "learner_s"))
    return (
        _spread(row.quantities["env_steps_per_s"]),
        "-" if row.increase is None else f"{row.increase:+.0%}",
        *("-" if one is None else f"{one.middle:.2f}" for one in seconds),
        "-" if (success := row.quantities["success"]) is None else f"{success.middle:.0%}",
        *(_reached(row, name) for name in ("seconds_to_goal", "env_steps_to_goal")),
        str(row.seeds),
    )


def _reached(row: Row, name: str) -> str:
    """The mean, if every seed has come so far: that of those which have would flatter the others."""
    value = row.quantities[name]
    if value is None:
        return "-"
    return significant(value.middle) if value.runs == row.seeds else f"{value.runs} of {row.seeds}"


def significant(value: float) -> str:
    """With three digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _spread(value: Range | None) -> str:
    if value is None:
        return "-"
    mean, low, high = map(significant, (value.middle, value.low, value.high))
    if value.half is not None:
        return f"{mean} \u00b1{significant(value.half)}"
    return mean if low == high else f"{mean} ({low}..{high})"


def _plain(value: Range | None) -> tuple[float | str, ...]:
    if value is None:
        return ("", "", "", "", 0)
    return (value.middle, value.low, value.high, "" if value.half is None else value.half, value.runs)


def _tex(text: str) -> str:
    plain = text.replace("\u00b1", r"$\pm$")
    return re.sub(r"[%&#_]", lambda found: f"\\{found[0]}", plain)
