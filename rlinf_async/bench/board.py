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
        """Those of `cells` that have no result yet; one that failed is tried again."""
        done = {cell for cell, result in self.results if "error" not in result}
        return (cell for cell in cells if cell not in done)

    def rows(self) -> list[dict[str, Any]]:
        """One row per scenario and mode: medians over repetitions, ratios within each repetition."""
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
        for key in (
            "fresh_steps_per_s",
            "overlap_efficiency",
            "step_s",
            "retrained",
            "batch_size",
            "chunk_cv",
        ):
            values = [result[key] for result in mine.values()]
            row[key] = None if None in values else statistics.median(values)
        row["staleness_max"] = max(result["staleness_max"] for result in mine.values())
        for key in ("idle", "bounds_s"):
            names = next(iter(mine.values()))[key]
            row[key] = {n: statistics.median(result[key][n] for result in mine.values()) for n in names}
        row["ratios"] = {
            name: ratio
            for name, other in MODES.items()
            if other.kind != "plugin" and (ratio := self._ratio(scenario, mine, [name])) is not None
        }
        stock = [name for name, other in MODES.items() if other.kind != "plugin"]
        row["ratio_stock_sync"] = self._ratio(scenario, mine, [n for n in stock if MODES[n].kind == "sync"])
        row["ratio_best_stock"] = self._ratio(scenario, mine, stock)
        return row

    def _good(self, scenario: str, mode: str) -> dict[int, Result]:
        """Results by repetition, without failures; the last one counts."""
        return {
            cell.repetition: result
            for cell, result in self.results
            if (cell.scenario, cell.mode) == (scenario, mode) and "error" not in result
        }

    def _ratio(self, scenario: str, mine: dict[int, Result], others: Sequence[str]) -> float | None:
        """Median over repetitions of fresh throughput over the best of `others` in the same repetition."""
        theirs = [self._good(scenario, name) for name in others]
        ratios = []
        for repetition, result in mine.items():
            rates = [good[repetition]["fresh_steps_per_s"] for good in theirs if repetition in good]
            if rates:
                ratios.append(result["fresh_steps_per_s"] / max(rates))
        return statistics.median(ratios) if ratios else None
