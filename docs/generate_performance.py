"""Writes what docs/performance.md generates: the tables of what `rlinf-async bench` has measured.

    python docs/generate_performance.py

It takes the rows of benchmarks/schedules/results.json. The prose of the page is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import fill

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "schedules" / "results.json"
PARTS = ("env", "inference", "learner")
SPEED = ("fresh env steps/s", "/ stock sync", "/ best stock", "overlap efficiency", "runs")

Row = Mapping[str, Any]


def rows() -> list[Row]:
    """Of the modes that were measured without an error."""
    return [row for row in json.loads(RESULTS.read_text())["rows"] if "error" not in row]


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))


def speed(row: Row) -> list[str]:
    """What both tables say of a mode."""
    rate, efficiency = row["fresh_steps_per_s"], row["overlap_efficiency"]
    return [
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}",
        *(f"{ratio:.2f}" if ratio else "-" for ratio in (row["ratio_stock_sync"], row["ratio_best_stock"])),
        f"{efficiency:.3f}" if efficiency else "-",
        str(row["repetitions"]),
    ]


def headline(measured: Sequence[Row]) -> str:
    """`full`, a line per scenario."""
    full = [row for row in measured if row["mode"] == "full"]
    return table(["scenario", *SPEED], [[f"`{row['scenario']}`", *speed(row)] for row in full])


def modes(measured: Sequence[Row]) -> str:
    """All modes, a table per scenario."""
    found: dict[str, list[list[str]]] = {}
    for row in measured:
        idle = " / ".join(f"{row['idle'][part]:.0%}" if part in row["idle"] else "-" for part in PARTS)
        line = [f"`{row['mode']}`", *speed(row), str(row["staleness_max"]), f"{row['batch_size']:.1f}", idle]
        found.setdefault(row["scenario"], []).append(line)
    columns = ["mode", *SPEED, "staleness", "mean batch", "idle env / inference / learner"]
    return "\n\n".join(f"**`{scenario}`**\n\n{table(columns, lines)}" for scenario, lines in found.items())


def generate(page: str) -> str:
    """The page with its tables anew."""
    measured = rows()
    return fill(page, {"headline": headline(measured), "modes": modes(measured)})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
