"""Measure the demo on both hosts: the same task and sizes, with every level off and with all levels on.

    python -m benchmarks.schedules.hosts --repetitions 3

Hosts and modes alternate within a repetition, so that other load of the machine falls on all of them. A run
that is in `hosts.json` is not repeated. `off` is RLinf's own synchronous loop on RLinf, and this package's
synchronous loop around veRL's update under veRL.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.result_store import ResultStore
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.lab.table import Range, markdown
from rlinf_async.observe.reading.run_reader import RunReader

RESULTS_FILE = Path(__file__).with_name("hosts.json")
RUNS_FOLDER = Path("runs/hosts")
DEADLINE_S = 1800.0
WARM_UP_STEPS = 2
"""Unmeasured steps at the beginning: with level 1 the first two fill the pipeline."""
COMPARED_MODES = ("off", "full")


@dataclass(frozen=True)
class Host:
    """The Python and the config of the demo on a host; `make setup` or `make setup-verl` makes the
    environment.
    """

    python: str
    config: str


HOSTS_BY_NAME = {
    "rlinf": Host(".venv/bin/python", "metaworld_ppo_mlp"),
    "verl": Host(".venv-verl/bin/python", "verl_metaworld_ppo_mlp"),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    host: str
    mode: str
    repetition: int
    steps: int

    def run(self) -> list[float]:
        """Make the run, and return the seconds of its steps.

        Raises:
            RuntimeError: the run failed, or has not logged all its steps.
        """
        host, directory = HOSTS_BY_NAME[self.host], RUNS_FOLDER / f"{self.host}-{self.mode}-{self.repetition}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        log = directory / "output.log"
        own = SIDES_BY_HOST[self.host].run(directory=directory, steps=self.steps)
        overrides = [*own, f"async.mode={self.mode}"]
        command = [host.python, "-m", "rlinf_async.cli", "train", "-n", host.config, *overrides]
        status = run_command(command, log, environment=OWN_CLUSTER, deadline_s=DEADLINE_S)
        seconds = _seconds(directory)
        if status or len(seconds) != self.steps:
            raise RuntimeError(f"{directory.name}: status {status}, {len(seconds)} steps: {tail(log, 3000)}")
        return seconds


def _seconds(directory: Path) -> list[float]:
    """Return the step seconds of a run from our metrics, or without them from RLinf's TensorBoard files."""
    if own := RunReader(directory).metrics():
        return [step["async/step_seconds"] for step in own]
    return list(read_scalars(directory).get("time/step", {}).values())


def cells(repetitions: int, steps: int) -> Iterator[Cell]:
    """Yield all runs in their order: every host and mode once, then again."""
    for repetition in range(repetitions):
        for mode in COMPARED_MODES:
            for host in HOSTS_BY_NAME:
                yield Cell(host, mode, repetition, steps)


def table(results: Mapping[str, list[float]], measured: list[Cell]) -> str:
    """Return a Markdown table with a line per host and mode: step seconds, and the speed-up over `off`."""
    medians = {
        cell: statistics.median(results[name(cell)][WARM_UP_STEPS:])
        for cell in measured
        if name(cell) in results
    }
    rows = []
    for host in HOSTS_BY_NAME:
        for mode in COMPARED_MODES:
            mine = [cell for cell in medians if (cell.host, cell.mode) == (host, mode)]
            over_off = [
                medians[off] / medians[cell] for cell in mine if (off := _beside(cell, medians)) is not None
            ]
            seconds = Range.of(medians[cell] for cell in mine)
            rows.append([host, mode, _words(seconds, " s"), _words(Range.of(over_off), " x"), str(len(mine))])
    return markdown(["host", "mode", "a step", "off / this", "runs"], rows)


def _beside(cell: Cell, medians: Mapping[Cell, float]) -> Cell | None:
    """Return the `off` run of the same host and repetition; None if it is missing."""
    off = Cell(cell.host, "off", cell.repetition, cell.steps)
    return off if off in medians else None


def _words(found: Range | None, unit: str) -> str:
    return "–" if found is None else found.words(unit)


def name(cell: Cell) -> str:
    return "-".join(map(str, asdict(cell).values()))


def main(
    repetitions: Annotated[int, typer.Option(help="Runs of every host and mode, interleaved.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 12,
    at_most: Annotated[
        int | None, typer.Option(help="Largest number of runs to make now; a later start makes the others.")
    ] = None,
) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    planned = list(cells(repetitions, steps))
    for cell in [cell for cell in planned if name(cell) not in store.results][:at_most]:
        seconds = [round(one, 3) for one in cell.run()]
        store.add(name(cell), seconds)
        typer.echo(f"{name(cell)}: {statistics.median(seconds[WARM_UP_STEPS:]):.2f} s a step")
    typer.echo(table(store.results, planned))


if __name__ == "__main__":
    typer.run(main)
