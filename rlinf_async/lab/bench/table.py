"""A bench's rows for a terminal, and how their figures are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.table import screen

Row = Mapping[str, Any]

TABLE_COLUMNS = (
    "mode",
    "fresh\nsteps/s",
    "over\nsync",
    "over best\n{others}",
    "overlap\neff.",
    "own\neff.",
    "CPU\nms",
    "lag",
    "% idle\nenv/inf./\nlearner",
)
"""The table of a scenario fits into 80 columns; `others` is the host's word for what it is compared with."""
WITH_RANGES = {
    "fresh_steps_per_s": ".0f",
    "ratio_stock_sync": ".2f",
    "ratio_best_stock": ".2f",
    "overlap_efficiency": ".2f",
}


def show(results: Results, console: Console) -> None:
    """A table per host and scenario: medians, and below them the range of the repetitions."""
    rows = results.rows()
    for host, name in dict.fromkeys((row["host"], row["scenario"]) for row in rows):
        modes = [row for row in rows if (row["host"], row["scenario"]) == (host, name)]
        cv = [row["chunk_cv"] for row in modes if row.get("chunk_cv") is not None]
        spread = f"; measured spread of a decision: {sum(cv) / len(cv):.2f}" if cv else ""
        console.print(f"\n[bold]{name}[/], under {host}: {SCENARIOS_BY_NAME[name].what}{spread}")
        columns = [column.format(others=SIDES_BY_HOST[host].others) for column in TABLE_COLUMNS]
        console.print(screen(columns, map(_cells, modes)))
        for row in modes:
            if "error" in row:
                console.print(f"{row['mode']} failed: {row['error'].strip()}", markup=False, soft_wrap=True)


def figure(row: Row, key: str, digits: str, form: str = "{} [{}, {}]") -> str:
    """Return the median; in `form`, with the least and the most where there are several repetitions."""
    if row[key] is None:
        return "-"
    if row["repetitions"] == 1:
        return f"{row[key]:{digits}}"
    return form.format(*(f"{value:{digits}}" for value in (row[key], *row["range"][key])))


def _cells(row: Row) -> list[str]:
    if "error" in row:
        return [row["mode"], "failed"]
    return [
        row["mode"],
        *(figure(row, key, digits, "{}\n{}-{}") for key, digits in WITH_RANGES.items()),
        *(figure(row, key, ".2f", "{}") for key in ("own_efficiency", "cpu_ms")),
        str(row["staleness_max"]),
        "/".join(_share(row["idle"].get(part)) for part in ("env", "inference", "learner")),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"
