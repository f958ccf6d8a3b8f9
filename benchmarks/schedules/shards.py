"""Compare `async.rollout.shards: auto` with fixed numbers of shards, by turns, in scenarios of the bench.

    python -m benchmarks.schedules.shards --scenario fast --repetitions 3
    python -m benchmarks.schedules.shards --scenario fast --shards 1x16,2x8,2x16,4x4
    python -m benchmarks.schedules.shards --table

`kept` is the number that `auto` begins with if the run keeps it (`async.advanced.fit_shards=false`). `2x8`
are two env workers of 8 shards each. A run that is in `shards.json` is not repeated.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.result_store import ResultStore
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.table import markdown
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir

RESULTS_FILE = Path(__file__).with_name("shards.json")
WARM_UP, STEPS = 8, 4
"""Unmeasured steps, during which a run may change its number of shards, and measured steps."""
AUTO, KEPT = "auto", "kept"
KEPT_OVERRIDE = "++async.advanced.fit_shards=false"
WORKERS_KEY = "cluster.component_placement.env.placement='0:0-{}'"
MEASURES = ("fresh_steps_per_s", "cpu_ms", "own_efficiency", "others")


@dataclass(frozen=True, kw_only=True)
class ShardsCell(BenchCell):
    """A run of mode `full` with `auto`, `kept`, or a fixed number of shards."""

    shards: str

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.shards} #{self.repetition + 1}"

    @property
    def overrides(self) -> list[str]:
        if self.shards == AUTO:
            return []
        if self.shards == KEPT:
            return [KEPT_OVERRIDE]
        workers, _, shards = self.shards.rpartition("x")
        placement = [WORKERS_KEY.format(int(workers) - 1)] if workers and int(workers) > 1 else []
        return [f"async.rollout.shards={shards}", *placement]

    def _command(self, directory: Path) -> list[str]:
        return [*super()._command(directory), *self.overrides]

    def run(self) -> dict[str, Any]:
        """Run, and return measures with the shards per env worker at the end, or `{"error": ...}`."""
        directory = Path(tempfile.mkdtemp(prefix="rlinf-async-shards-"))
        try:
            measured = self.measured_in(directory).as_dict()
            records = RunDir(directory / "run")
            facts = RunReader(records.path).facts()
        except ValueError as error:
            return {"error": str(error)}
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        found = {name: measured[name] for name in MEASURES}
        return {
            **found,
            "shards": facts.get("plan", {}).get("shards_per_worker"),
            "fits": facts.get("shard_fits"),
        }


def main(
    scenario: Annotated[str, typer.Option(help="names of scenarios, with commas between them")] = "fast",
    shards: Annotated[
        str, typer.Option(help="auto, kept, numbers, or WORKERSxNUMBER")
    ] = "kept,auto,32,16,8,4",
    repetitions: int = 3,
    table: Annotated[bool, typer.Option(help="only print what is there")] = False,
) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for repetition in range(0 if table else repetitions):
        for name in scenario.split(","):
            for number in shards.split(","):
                cell = ShardsCell(
                    scenario=name,
                    mode="full",
                    repetition=repetition,
                    warm_up=WARM_UP,
                    steps=STEPS,
                    shards=number,
                )
                if "error" in store.results.get(cell.name, {"error": ""}):
                    store.add(cell.name, result := cell.run())
                    print(cell.name, json.dumps(result), flush=True)
    print(
        markdown(
            ["scenario", "shards", "at the end", "decisions", "CPU a decision", "runs"], rows(store.results)
        )
    )


def rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield a row for each scenario and number: ratios over `kept` of the same repetition."""
    for scenario, shards in dict.fromkeys(tuple(name.split()[:2]) for name in results):
        found = [
            (result, results[base])
            for name, result in results.items()
            if name.split()[:2] == [scenario, shards]
            if (base := f"{scenario} {KEPT} {name.split()[2]}") in results
            if "error" not in result and "error" not in results[base]
        ]
        if not found:
            continue
        ends = sorted({result["shards"] for result, _ in found})
        yield [
            f"`{scenario}`",
            shards,
            ", ".join(map(str, ends)),
            *(
                in_words([one[name] / kept[name] for one, kept in found])
                for name in ("fresh_steps_per_s", "cpu_ms")
            ),
            str(len(found)),
        ]


def in_words(values: list[float]) -> str:
    """Return the median, with the least and the most of several values."""
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):.2f}, {max(values):.2f}]"


if __name__ == "__main__":
    typer.run(main)
