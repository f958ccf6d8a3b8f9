"""The command `rlinf-async bench`: run the cells in turn, show the rows, write them down."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.core.config_keys import did_you_mean
from rlinf_async.hosts.host import load
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import DEAD_WORK_MODES, SIDES_BY_HOST
from rlinf_async.lab.cells import run_in_turn
from rlinf_async.lab.outputs import check_replaceable, write_json
from rlinf_async.lab.table import screen
from rlinf_async.observe.files import make_directory

DEAD_WORK_NAMES = tuple(mode.name for mode in DEAD_WORK_MODES)
"""Default modes of scenarios with episodes that end early."""
BENCH_MARK = b'"command": "rlinf-async bench"'
"""A part of every file of rows."""
WARM_UP, STEPS, REPETITIONS = 3, 4, 3
"""Unmeasured global steps at the beginning, measured global steps, and runs of every mode."""


def plan(
    *,
    scenarios: Sequence[str] | None,
    modes: Sequence[str] | None,
    repetitions: int = REPETITIONS,
    host: str = "rlinf",
    steps: int = STEPS,
) -> list[BenchCell]:
    """Return the cells to run, interleaved: every mode of a scenario runs before any is repeated.

    Raises:
        ValueError: an unknown host, scenario or mode, one that cannot run here, no repetition, or no step.
        ModuleNotFoundError: a package that the host's runs need is not installed.
    """
    _check_names("host", [host], SIDES_BY_HOST)
    side = SIDES_BY_HOST[host]
    side.check()
    if importlib.util.find_spec("hydra") is None:
        raise ModuleNotFoundError(name="hydra")  # as its import would in every run
    usual = [name for name in SCENARIOS_BY_NAME if unavailable(name, host) is None]
    names = _check_names("scenario", scenarios or usual, SCENARIOS_BY_NAME)
    for name in names:
        if (reason := unavailable(name, host)) is not None:
            raise ValueError(f"scenario {name!r} cannot run here: {reason}")
    run = _check_names("mode", modes or [*side.standard, *DEAD_WORK_NAMES], side.modes)
    if repetitions < 1:
        raise ValueError(f"repetitions={repetitions} must be at least 1")
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    return [
        BenchCell(
            host=host, scenario=scenario, mode=mode, repetition=repetition, warm_up=WARM_UP, steps=steps
        )
        for repetition in range(repetitions)
        for scenario in names
        for mode in run
        if mode not in SCENARIOS_BY_NAME[scenario].without
        if modes or mode not in DEAD_WORK_NAMES or SCENARIOS_BY_NAME[scenario].ends_early
    ]


def unavailable(scenario: str, host: str = "rlinf") -> str | None:
    """Return the reason why a scenario cannot run on this machine under `host`, or None."""
    return SIDES_BY_HOST[host].unavailable(SCENARIOS_BY_NAME[scenario])


def open_results(cells: Sequence[BenchCell], *, json_path: Path | None) -> tuple[Results, list[BenchCell]]:
    """Return the results of an earlier start next to `json_path`, and the cells that they lack.

    Raises:
        ValueError: the results are of other steps, or of another host, or the file is of something else.
    """
    if json_path is not None:
        check_replaceable(json_path, BENCH_MARK)
    results = Results(json_path.with_suffix(".cells.jsonl") if json_path else None)
    return results, results.missing(cells)


def run(results: Results, missing: Sequence[BenchCell], *, json_path: Path | None, console: Console) -> None:
    """Run the cells in turn; with a `json_path`, the file is written after every result."""

    def run_one(cell: BenchCell, _: str) -> str:
        result = cell.run()
        results.add(cell, result)
        if json_path is not None:
            write(json_path, results, host=cell.host)
        return result.get("error") or f"{result['fresh_steps_per_s']:.0f} fresh env steps/s"

    console.print(f"{len(missing)} runs, one to three minutes each", style="dim")
    run_in_turn(missing, run_one, console)


def write(path: Path, results: Results, *, host: str = "rlinf") -> None:
    """Write the rows of `host`, and the machine and versions that have produced them."""
    content = {
        "command": "rlinf-async bench",
        "host": host,
        "versions": load(host).versions(),
        "python": platform.python_version(),
        "rows": results.rows(),
    }
    make_directory(path.parent, private=False)
    write_json(path, content)


def _check_names(kind: str, names: Sequence[str], choices: Any) -> Sequence[str]:
    for name in names:
        if name not in choices:
            hint = did_you_mean(name, choices)
            raise ValueError(f"{kind} {name!r} is not one of {', '.join(choices)}{hint}")
    return names


ModeRow = Mapping[str, Any]

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
"""The table of a scenario fits into 80 columns; `others` is the host's word for the modes without levels."""
WITH_RANGES = {
    "fresh_steps_per_s": ".0f",
    "ratio_stock_sync": ".2f",
    "ratio_best_stock": ".2f",
    "overlap_efficiency": ".2f",
}


def show(results: Results, console: Console) -> None:
    """Print a table per host and scenario: medians, and below them the range of the repetitions."""
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


def figure(row: ModeRow, key: str, digits: str, form: str = "{} [{}, {}]") -> str:
    """Return the median; with several repetitions in `form`, with the least and the most."""
    if row[key] is None:
        return "-"
    if row["repetitions"] == 1:
        return f"{row[key]:{digits}}"
    return form.format(*(f"{value:{digits}}" for value in (row[key], *row["range"][key])))


def _cells(row: ModeRow) -> list[str]:
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
