"""A bench's rows for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rlinf_async.bench.board import Board
from rlinf_async.bench.scenarios import SCENARIOS

Row = Mapping[str, Any]

COLUMNS = (
    "fresh\nsteps/s",
    "over\nsync",
    "over best\nstock",
    "overlap\neff.",
    "own\neff.",
    "CPU\nms",
    "lag",
    "% idle\nenv/inf./\nlearner",
)


def show(board: Board, console: Console) -> None:
    """A table per scenario: medians, and below them the range of the repetitions."""
    rows = board.rows()
    for name in dict.fromkeys(row["scenario"] for row in rows):
        mine = [row for row in rows if row["scenario"] == name]
        cv = [row["chunk_cv"] for row in mine if row.get("chunk_cv") is not None]
        spread = f"; measured spread of a decision: {sum(cv) / len(cv):.2f}" if cv else ""
        console.print(f"\n[bold]{name}[/]: {SCENARIOS[name].what}{spread}")
        console.print(_table(mine))
        for row in mine:
            if "error" in row:
                console.print(f"{row['mode']} failed: {row['error'].strip()}", markup=False, soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    """Fits into 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("mode", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["mode"], *(["failed"] if "error" in row else _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    return [
        _figure(row, "fresh_steps_per_s", ".0f"),
        _figure(row, "ratio_stock_sync", ".2f"),
        _figure(row, "ratio_best_stock", ".2f"),
        _figure(row, "overlap_efficiency", ".2f"),
        "-" if row["own_efficiency"] is None else f"{row['own_efficiency']:.2f}",
        "-" if row["cpu_ms"] is None else f"{row['cpu_ms']:.2f}",
        str(row["staleness_max"]),
        "/".join(_share(row["idle"].get(part)) for part in ("env", "inference", "learner")),
    ]


def _figure(row: Row, key: str, digits: str) -> str:
    """The median, and the range where there are several repetitions."""
    if row[key] is None:
        return "-"
    low, high = row["range"][key]
    spread = f"\n{low:{digits}}-{high:{digits}}" if row["repetitions"] > 1 else ""
    return f"{row[key]:{digits}}{spread}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"
