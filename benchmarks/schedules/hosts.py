"""The demo on both hosts: one real task with the same numbers, with every level off and with all of them on.

    python -m benchmarks.schedules.hosts --repetitions 3

Runs of one repetition follow each other, host by host and mode by mode, so that what else the machine does
falls on all of them. A run that is in `hosts.json` is not repeated. `off` is RLinf's own synchronous loop on
RLinf, and this package's loop around veRL's update under veRL.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kept import Kept
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.lab.table import Range, markdown
from rlinf_async.observe.run_dir import RunDir

RESULTS = Path(__file__).with_name("hosts.json")
RUNS = Path("runs/hosts")
DEADLINE_S = 1800.0
WARM_UP = 2
"""Steps at the beginning that are not measured: with level 1 the first two fill what is in flight."""
MODES = ("off", "full")


@dataclass(frozen=True)
class Host:
    """How the demo is started, by the Python of the environment that `make setup` or `setup-verl` makes."""

    python: str
    config: str


HOSTS = {
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
        """Seconds of its steps.

        Raises:
            RuntimeError: the run failed, or has not logged all its steps.
        """
        host, directory = HOSTS[self.host], RUNS / f"{self.host}-{self.mode}-{self.repetition}"
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
    """Of the steps of a run: by our own records, or by RLinf's where it ran by itself."""
    if own := RunDir(directory).read_metrics():
        return [step["async/step_seconds"] for step in own]
    return list(read_scalars(directory).get("time/step", {}).values())


def cells(repetitions: int, steps: int) -> Iterator[Cell]:
    """In order: every host and mode once, then again."""
    for repetition in range(repetitions):
        for mode in MODES:
            for host in HOSTS:
                yield Cell(host, mode, repetition, steps)


def table(results: Mapping[str, list[float]], measured: list[Cell]) -> str:
    """A line per host and mode: seconds of a step, and how much faster than the host's own `off`."""
    medians = {
        cell: statistics.median(results[name(cell)][WARM_UP:]) for cell in measured if name(cell) in results
    }
    rows = []
    for host in HOSTS:
        for mode in MODES:
            mine = [cell for cell in medians if (cell.host, cell.mode) == (host, mode)]
            over_off = [
                medians[off] / medians[cell] for cell in mine if (off := _beside(cell, medians)) is not None
            ]
            seconds = Range.of(medians[cell] for cell in mine)
            rows.append([host, mode, _words(seconds, " s"), _words(Range.of(over_off), " x"), str(len(mine))])
    return markdown(["host", "mode", "a step", "off / this", "runs"], rows)


def _beside(cell: Cell, medians: Mapping[Cell, float]) -> Cell | None:
    """The run of `off` of the same host and repetition."""
    off = Cell(cell.host, "off", cell.repetition, cell.steps)
    return off if off in medians else None


def _words(found: Range | None, unit: str) -> str:
    return "–" if found is None else found.words(unit)


def name(cell: Cell) -> str:
    return "-".join(map(str, asdict(cell).values()))


def main(
    repetitions: Annotated[int, typer.Option(help="Of every host and mode, interleaved.")] = 3,
    steps: Annotated[int, typer.Option(help="Of a run.")] = 12,
    at_most: Annotated[int | None, typer.Option(help="Runs now; the others are for the next start.")] = None,
) -> None:
    """Run what is missing, and print the table."""
    kept = Kept(RESULTS)
    planned = list(cells(repetitions, steps))
    for cell in [cell for cell in planned if name(cell) not in kept.results][:at_most]:
        seconds = [round(one, 3) for one in cell.run()]
        kept.add(name(cell), seconds)
        typer.echo(f"{name(cell)}: {statistics.median(seconds[WARM_UP:]):.2f} s a step")
    typer.echo(table(kept.results, planned))


if __name__ == "__main__":
    typer.run(main)
