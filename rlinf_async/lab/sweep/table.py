"""Tables of the averages of each setting: on the screen, in Markdown, in LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from rich.table import Table

from rlinf_async.lab import table
from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.plan import Sweep
from rlinf_async.lab.sweep.settings import Setting, short
from rlinf_async.lab.sweep.steps import DEFAULT_GOAL, Averages
from rlinf_async.lab.table import Range
from rlinf_async.observe.state import SUCCESS_WINDOW_STEPS

QUANTITY_NAMES = tuple(field.name for field in fields(Averages))


@dataclass(frozen=True)
class Outcomes:
    """The results of a setting's runs; runs that have not ended are in neither field."""

    measured: Mapping[int, Averages]
    """The averages of the measurable runs, by seed."""
    failures: tuple[str, ...] = ()
    """A sentence for each failed run, with the run, its error and the path of its log."""


@dataclass(frozen=True, kw_only=True)
class SettingRow:
    """A setting in the table.

    `increase` is the growth of its mean throughput over that of `off` with the same values, on the seeds that
    both have.
    """

    setting: str
    """The levels, by name."""
    values: Mapping[str, str]
    """The values of the varied keys, by key."""
    seeds: int
    """The number of measured seeds."""
    failures: tuple[str, ...]
    quantities: Mapping[str, Range | None]
    """Ranges over seeds, by the names of `Averages`."""
    increase: float | None

    @property
    def name(self) -> str:
        """The setting and the values of the varied keys."""
        return " ".join([self.setting, *(f"{short(key)}={value}" for key, value in self.values.items())])


def outcomes(sweep: Sweep) -> dict[Setting, Outcomes]:
    """Return the results of the runs of a sweep, in the order of its settings."""
    return {setting: _outcomes(sweep.cells_of(setting)) for setting in sweep.settings}


def _outcomes(cells: Sequence[SweepCell]) -> Outcomes:
    records = [(cell, record) for cell in cells if (record := cell.record()) is not None]
    return Outcomes(
        {cell.seed: cell.measure() for cell, record in records if record.status == "done"},
        tuple(
            f"{cell.name} failed: {record.error}; log: {cell.log}" for cell, record in records if record.error
        ),
    )


def rows(settings: Mapping[Setting, Outcomes]) -> list[SettingRow]:
    """Return a row per setting; its quantities are means over seeds."""
    off = {setting.values: one.measured for setting, one in settings.items() if not setting.active}
    return [
        SettingRow(
            setting=setting.levels_name,
            values={key.lstrip("+"): value for key, value in setting.values},
            seeds=len(one.measured),
            failures=one.failures,
            quantities={
                name: Range.of([getattr(run, name) for run in one.measured.values()], statistics.mean)
                for name in QUANTITY_NAMES
            },
            increase=_increase(one.measured, off.get(setting.baseline, {})) if setting.active else None,
        )
        for setting, one in settings.items()
    ]


def _increase(runs: Mapping[int, Averages], off: Mapping[int, Averages]) -> float | None:
    shared = runs.keys() & off.keys()
    if not shared:
        return None
    rate, base = (sum(one[seed].env_steps_per_s for seed in shared) for one in (runs, off))
    return rate / base - 1


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
"""The meaning of the columns, a paragraph each; every host has its own for `off`."""
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


def headers(rows: Sequence[SettingRow], goal: float) -> tuple[str, ...]:
    """Return the heads of the columns: the setting, each varied key, and the results."""
    last = (f"{one} {goal:.0%}" if one.endswith(" to") else one for one in LAST_COLUMNS)
    return ("setting", *map(short, _keys(rows)), *last)


def screen(rows: Sequence[SettingRow], *, goal: float = DEFAULT_GOAL) -> Table:
    """Return the table for a terminal; without varied keys it fits into 80 columns.

    It has the time to a success rate if a run has reached the rate, and otherwise the seconds of rollouts and
    learner; the other tables have both.
    """
    heads, lines = headers(rows, goal), _lines(rows)
    reached = any(row.quantities["seconds_to_goal"] for row in rows)
    left_out = ("rollout s", "learner s") if reached else (f"s to {goal:.0%}", f"steps to {goal:.0%}")
    columns = [column for column, head in enumerate(heads) if head not in left_out]
    titles = [heads[column].replace(" ", "\n", 1).replace("_", "_\n") for column in columns]
    return table.screen(titles, [[line[column] for column in columns] for line in lines], space=1)


def markdown(rows: Sequence[SettingRow], *, title: str, off: str, goal: float = DEFAULT_GOAL) -> str:
    """Return the table with its title, the failures, and the meaning of the columns and of `off`."""
    notes = "\n".join(f"* {note}" for note in (*failures(rows), *TABLE_CAPTION, off))
    text = table.markdown(headers(rows, goal), _lines(rows), numbers=True)
    return f"# {title}\n\n{text}\n\n{notes}\n"


def latex(rows: Sequence[SettingRow], *, goal: float = DEFAULT_GOAL) -> str:
    """Return a `tabular` for a paper, with the rules of booktabs."""
    heads = headers(rows, goal)
    lines = [" & ".join(map(_tex, cells)) + r" \\" for cells in (heads, *_lines(rows))]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    return f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n{body}\n\\end{{tabular}}\n"


def failures(rows: Sequence[SettingRow]) -> list[str]:
    """Return a sentence for every failed run."""
    return [failure for row in rows for failure in row.failures]


def as_csv(rows: Sequence[SettingRow]) -> str:
    """Return the table as CSV with unrounded values; missing values are empty, and the increase is in per
    cent.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = _keys(rows)
    spreads = [f"{name}{end}" for name in QUANTITY_NAMES for end in ("", "_min", "_max", "_ci95", "_n")]
    writer.writerow(["setting", *keys, "seeds", "failed", "increase_percent", *spreads])
    for row in rows:
        values = [value for name in QUANTITY_NAMES for value in _plain(row.quantities[name])]
        increase = "" if row.increase is None else 100 * row.increase
        values_of_keys = [row.values.get(key, "") for key in keys]
        writer.writerow([row.setting, *values_of_keys, row.seeds, len(row.failures), increase, *values])
    return text.getvalue()


def _keys(rows: Sequence[SettingRow]) -> list[str]:
    """Return the varied keys, in the user's order."""
    return list(dict.fromkeys(key for row in rows for key in row.values))


def _lines(rows: Sequence[SettingRow]) -> list[tuple[str, ...]]:
    keys = _keys(rows)
    return [(row.setting, *(row.values.get(key, "-") for key in keys), *_cells(row)) for row in rows]


def _cells(row: SettingRow) -> tuple[str, ...]:
    if not row.seeds:
        return ("failed" if row.failures else "-", *["-"] * (len(LAST_COLUMNS) - 2), "0")
    seconds = (row.quantities[name] for name in ("step_s", "rollout_s", "learner_s"))
    return (
        _spread(row.quantities["env_steps_per_s"]),
        "-" if row.increase is None else f"{row.increase:+.0%}",
        *("-" if one is None else f"{one.middle:.2f}" for one in seconds),
        "-" if (success := row.quantities["success"]) is None else f"{success.middle:.0%}",
        *(_goal_cell(row, name) for name in ("seconds_to_goal", "env_steps_to_goal")),
        str(row.seeds),
    )


def _goal_cell(row: SettingRow, name: str) -> str:
    """Return the mean if every seed has reached the goal: a mean over only those that have would flatter."""
    value = row.quantities[name]
    if value is None:
        return "-"
    return significant(value.middle) if value.runs == row.seeds else f"{value.runs} of {row.seeds}"


def significant(value: float) -> str:
    """Format a number with at least three digits."""
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
    return re.sub(r"[%&#_]", lambda match: f"\\{match[0]}", plain)
