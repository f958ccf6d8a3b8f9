"""The cells of a bench: missing cells, results, and the rows that compare them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.table import Range
from rlinf_async.observe.files import append, make_directory
from rlinf_async.observe.read_files import read_json, read_named

Result = dict[str, Any]

MAX_RESULTS_BYTES = 64 << 20
"""Most bytes of a file of results; a run has about 2 kB."""

FIGURE_KEYS = (
    "fresh_steps_per_s",
    "trained_per_s",
    "collected_per_s",
    "overlap_efficiency",
    "own_efficiency",
    "step_s",
    "retrained",
    "batch_size",
    "chunk_cv",
    "cpu_ms",
    "others",
)
"""Figures of a measurement; a row has the median and the range of each."""


@dataclass
class Results:
    """The results of a bench; with a `path`, each is written at once and read at the next start.

    Raises:
        ValueError: the file at `path` holds no results of a bench.
    """

    path: Path | None = None
    runs: list[tuple[BenchCell, Result]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.runs += _read(self.path)

    def add(self, cell: BenchCell, result: Result) -> None:
        self.runs.append((cell, result))
        if self.path is not None:
            make_directory(self.path.parent, private=False)
            line = json.dumps({"cell": asdict(cell), "result": result}) + "\n"
            append(self.path, line.encode(), private=False)

    def missing(self, cells: Sequence[BenchCell]) -> list[BenchCell]:
        """Return the `cells` without a result; failed cells are tried again.

        Raises:
            ValueError: existing results have other numbers of steps than `cells`, or another host, and so are
            not
                comparable.
        """
        hosts = {cell.host for cell in (*cells, *(cell for cell, _ in self.runs))}
        if len(hosts) > 1:
            raise ValueError(
                f"{self.path} holds results under another host than these ({', '.join(sorted(hosts))}): they "
                "cannot be compared, write to another file"
            )
        windows = {(cell.warm_up, cell.steps) for cell in (*cells, *(cell for cell, _ in self.runs))}
        if len(windows) > 1:
            raise ValueError(
                f"{self.path} holds results over other steps than these (warm-up, measured: "
                f"{', '.join(map(str, sorted(windows)))}): they cannot be compared, write to another file"
            )
        done_cells = {cell for cell, result in self.runs if "error" not in result}
        return [cell for cell in cells if cell not in done_cells]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per host, scenario and mode: medians and ranges over repetitions, ratios within each.

        `stock` in the name of a ratio means all modes of a host that are not levels of this package.
        """
        # Results of removed modes have their rows after the others.
        sides = dict.fromkeys(_line(cell) for cell, _ in self.runs)
        lines = [
            (host, scenario, mode)
            for host, side in SIDES_BY_HOST.items()
            for scenario in SCENARIOS_BY_NAME
            for mode in dict.fromkeys([*side.modes, *(mode for _, _, mode in sides)])
        ]
        return [self._row(*line) for line in lines if line in sides]

    def _row(self, host: str, scenario: str, mode: str) -> dict[str, Any]:
        good = self._good(host, scenario, mode)
        names = {"host": host, "scenario": scenario, "mode": mode}
        row: dict[str, Any] = {**names, "repetitions": len(good)}
        if not good:
            failures = [result for cell, result in self.runs if _line(cell) == (host, scenario, mode)]
            return {**row, "error": failures[-1]["error"]}
        modes = SIDES_BY_HOST[host].modes
        stock = [name for name, other in modes.items() if other.kind != "plugin"]
        sync = [name for name in stock if modes[name].kind == "sync"]
        ranges = {key: Range.of([result[key] for result in good.values()]) for key in FIGURE_KEYS}
        ranges["ratio_stock_sync"] = self._ratios(host, scenario, good, sync)
        ranges["ratio_best_stock"] = self._ratios(host, scenario, good, stock)
        row |= {key: spread and spread.middle for key, spread in ranges.items()}
        row["range"] = {key: spread and [spread.low, spread.high] for key, spread in ranges.items()}
        row["staleness_max"] = max(result["staleness_max"] for result in good.values())
        for key in ("idle", "bounds_s", "own_bounds_s"):
            names = next(iter(good.values()))[key]
            row[key] = {n: statistics.median(result[key][n] for result in good.values()) for n in names}
        row["ratios"] = {
            name: ratio.middle for name in stock if (ratio := self._ratios(host, scenario, good, [name]))
        }
        return row

    def _good(self, host: str, scenario: str, mode: str) -> dict[int, Result]:
        """Return the results by repetition, without failures; the last result of a repetition counts."""
        return {
            cell.repetition: result
            for cell, result in self.runs
            if _line(cell) == (host, scenario, mode) and "error" not in result
        }

    def _ratios(
        self, host: str, scenario: str, good: Mapping[int, Result], others: Sequence[str]
    ) -> Range | None:
        """Return the range of fresh throughput over that of the best of `others` in the same repetition."""
        runs_of_others = [self._good(host, scenario, name) for name in others]
        ratios = []
        for repetition, result in good.items():
            rates = [runs[repetition]["fresh_steps_per_s"] for runs in runs_of_others if repetition in runs]
            if rates:
                ratios.append(result["fresh_steps_per_s"] / max(rates))
        return Range.of(ratios)


def _read(path: Path) -> list[tuple[BenchCell, Result]]:
    """Read the runs of a file of results that the user has named.

    Raises:
        ValueError: the file cannot be read, or one of its lines is no result of a bench.
    """
    try:
        lines = read_named(path, limit=MAX_RESULTS_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; write to another file") from error
    runs = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = read_json(line)
            cell, result = BenchCell(**entry["cell"]), dict(entry["result"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"line {number} of {path} is no result of a bench; write to another file"
            ) from error
        runs.append((cell, result))
    return runs


def _line(cell: BenchCell) -> tuple[str, str, str]:
    """Return the name of the row that a cell belongs to."""
    return (cell.host, cell.scenario, cell.mode)
