"""All cells of a bench: which are to be run, what came out, and the rows that compare them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.bench.cell import Cell
from rlinf_async.bench.modes import MODES
from rlinf_async.bench.scenarios import SCENARIOS

Result = dict[str, Any]

FIGURES = (
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
"""Of a measurement, those that a row has the median and the range of."""


@dataclass
class Board:
    """Results as they come; with a `path`, every one is written at once and kept for the next start."""

    path: Path | None = None
    results: list[tuple[Cell, Result]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                entry = json.loads(line)
                self.results.append((Cell(**entry["cell"]), entry["result"]))

    def add(self, cell: Cell, result: Result) -> None:
        self.results.append((cell, result))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "result": result}) + "\n")

    def missing(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Those of `cells` that have no result yet; one that failed is tried again.

        Raises:
            ValueError: there are results over other steps than those of `cells`, which are not comparable.
        """
        windows = {(cell.warm_up, cell.steps) for cell in (*cells, *(cell for cell, _ in self.results))}
        if len(windows) > 1:
            raise ValueError(
                f"{self.path} holds results over other steps than these (warm-up, measured: "
                f"{', '.join(map(str, sorted(windows)))}): they cannot be compared, write to another file"
            )
        done = {cell for cell, result in self.results if "error" not in result}
        return (cell for cell in cells if cell not in done)

    def rows(self) -> list[dict[str, Any]]:
        """One row per scenario and mode: medians and ranges over repetitions, ratios within each of them."""
        there = {(cell.scenario, cell.mode) for cell, _ in self.results}
        return [
            self._row(scenario, mode) for scenario in SCENARIOS for mode in MODES if (scenario, mode) in there
        ]

    def _row(self, scenario: str, mode: str) -> dict[str, Any]:
        mine = self._good(scenario, mode)
        row: dict[str, Any] = {"scenario": scenario, "mode": mode, "repetitions": len(mine)}
        if not mine:
            failed = [r for c, r in self.results if (c.scenario, c.mode) == (scenario, mode)]
            return {**row, "error": failed[-1]["error"]}
        stock = [name for name, other in MODES.items() if other.kind != "plugin"]
        sync = [name for name in stock if MODES[name].kind == "sync"]
        values = {
            **{key: [result[key] for result in mine.values()] for key in FIGURES},
            "ratio_stock_sync": self._ratios(scenario, mine, sync),
            "ratio_best_stock": self._ratios(scenario, mine, stock),
        }
        row |= {key: _median(of) for key, of in values.items()}
        row["range"] = {key: _range(of) for key, of in values.items()}
        row["staleness_max"] = max(result["staleness_max"] for result in mine.values())
        for key in ("idle", "bounds_s", "own_bounds_s"):
            names = next(iter(mine.values()))[key]
            row[key] = {n: statistics.median(result[key][n] for result in mine.values()) for n in names}
        row["ratios"] = {
            name: ratio
            for name in stock
            if (ratio := _median(self._ratios(scenario, mine, [name]))) is not None
        }
        return row

    def _good(self, scenario: str, mode: str) -> dict[int, Result]:
        """Results by repetition, without failures; the last one counts."""
        return {
            cell.repetition: result
            for cell, result in self.results
            if (cell.scenario, cell.mode) == (scenario, mode) and "error" not in result
        }

    def _ratios(self, scenario: str, mine: dict[int, Result], others: Sequence[str]) -> list[float]:
        """Fresh throughput over the best of `others` in the same repetition, of each that has one."""
        theirs = [self._good(scenario, name) for name in others]
        ratios = []
        for repetition, result in mine.items():
            rates = [good[repetition]["fresh_steps_per_s"] for good in theirs if repetition in good]
            if rates:
                ratios.append(result["fresh_steps_per_s"] / max(rates))
        return ratios


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _range(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if known else None
