"""Writes the tables of what `rlinf-async bench` has measured.

One is in docs/performance.md, all of them are in benchmarks/schedules/measurements.md.

    python docs/generate_performance.py

It takes the runs in benchmarks/schedules: those of results.cells.jsonl, for tables apart those of
earlier.cells.jsonl, which were measured over other steps, of sixteen_cores*.cells.jsonl, from another
machine, and of verl.cells.jsonl, under another host. The prose of the page is left as
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from generated import fill

from rlinf_async.lab.bench.command import ModeRow, figure
from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.table import markdown

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "schedules"
ALL = RESULTS / "measurements.md"
PARTS = ("env", "inference", "learner")
SPEED = ("fresh env steps/s", "/ stock sync", "/ best stock", "overlap efficiency", "own", "runs")
MORE = ("CPU ms / fresh step", "other cores", "staleness", "mean batch", "idle env / inference / learner")


def rows(name: str) -> list[ModeRow]:
    """Of the modes that were measured without an error."""
    return [row for row in Results(RESULTS / f"{name}.cells.jsonl").rows() if "error" not in row]


def speed(row: ModeRow) -> list[str]:
    """What all tables say of a mode: medians, and the range of several repetitions."""
    rate = ",.0f" if row["fresh_steps_per_s"] >= 100 else ".1f"
    return [
        figure(row, "fresh_steps_per_s", rate),
        figure(row, "ratio_stock_sync", ".2f"),
        figure(row, "ratio_best_stock", ".2f"),
        figure(row, "overlap_efficiency", ".2f"),
        figure(row, "own_efficiency", ".2f", "{}"),
        str(row["repetitions"]),
    ]


def headline(measured: Sequence[ModeRow]) -> str:
    """`full`, a line per scenario."""
    full = [row for row in measured if row["mode"] == "full"]
    return markdown(["scenario", *SPEED], [[f"`{row['scenario']}`", *speed(row)] for row in full])


def modes(measured: Sequence[ModeRow]) -> str:
    """All modes, a table per scenario."""
    lines_of: dict[str, list[list[str]]] = {}
    for row in measured:
        lines_of.setdefault(row["scenario"], []).append([f"`{row['mode']}`", *speed(row), *more(row)])
    columns = ["mode", *SPEED, *MORE]
    return "\n\n".join(
        f"**`{scenario}`**\n\n{markdown(columns, lines)}" for scenario, lines in lines_of.items()
    )


def more(row: ModeRow) -> list[str]:
    """What the tables of the modes say beside their speed."""
    return [
        figure(row, "cpu_ms", ".2f"),
        "-" if row["others"] is None else f"{row['range']['others'][1]:.1f}",
        str(row["staleness_max"]),
        f"{row['batch_size']:.1f}",
        " / ".join(f"{row['idle'][part]:.0%}" if part in row["idle"] else "-" for part in PARTS),
    ]


def several(measured: Sequence[ModeRow]) -> str:
    """A line per scenario and mode, with their speed alone."""
    lines = [[f"`{row['scenario']}`", f"`{row['mode']}`", *speed(row)] for row in measured]
    return markdown(["scenario", "mode", *SPEED], lines)


def under_verl(measured: Sequence[ModeRow], *modes: str) -> str:
    """A line per scenario and mode; of `modes` alone, if some are named."""
    lines = [
        [f"`{row['scenario']}`", f"`{row['mode']}`", *speed(row)]
        for row in measured
        if row["mode"] in (modes or (row["mode"],))
    ]
    return markdown(["scenario", "mode", SPEED[0], "/ sync", "/ best peer", *SPEED[3:]], lines)


def beside(measured: Sequence[ModeRow], *levers: str) -> str:
    """Modes beside `full` and the best of RLinf's, in the scenarios in which they were measured."""
    chosen = [row["scenario"] for row in measured if row["mode"] in levers]
    lines = [
        [f"`{row['scenario']}`", f"`{row['mode']}`", *speed(row)]
        for row in measured
        if row["scenario"] in chosen and (row["mode"] in ("full", *levers) or row["ratio_best_stock"] == 1.0)
    ]
    return markdown(["scenario", "mode", *SPEED], lines)


def generate(page: str) -> str:
    """The page of the figures that matter, with its table written anew."""
    today, before = rows("by_default"), rows("results")
    measured = {row["scenario"] for row in today}
    return fill(
        page,
        {
            "headline": headline([*today, *(row for row in before if row["scenario"] not in measured)]),
            "under veRL": under_verl(rows("verl"), "full"),
        },
    )


def generate_all(page: str) -> str:
    """The page of all measurements, with its tables written anew."""
    measured = rows("results")
    tables = {"headline": headline(measured), "modes": modes(measured), "earlier": several(rows("earlier"))}
    tables["by default"] = several(rows("by_default"))
    tables["scorer"] = beside(measured, "full-scorer", "full-scorer-fine")
    tables["tasks"] = beside(measured, "full-tasks")
    tables["sixteen cores"] = several(rows("sixteen_cores"))
    tables["sixteen cores, twelve steps"] = several(rows("sixteen_cores_12"))
    tables["under veRL"] = under_verl(rows("verl"))
    return fill(page, tables)


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
    ALL.write_text(generate_all(ALL.read_text()))
