"""How well a plan from one run foretells others: `python -m benchmarks.schedules.held_out --scenario libero`.

Of each scenario one run of `full` is made on Ray, and the others are planned from its trace alone and written
down, as `rlinf-async plan` does it for a user; only then are they run. Nothing of the bench's service times,
and nothing that was fitted to its cells, reaches the plan. What is in `held_out.json` is not repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.kept import Kept
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.command import STEPS, WARM_UP
from rlinf_async.lab.bench.sides import BENCH_MODES
from rlinf_async.lab.plan.job import changed
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import replay
from rlinf_async.lab.table import Range, markdown

RESULTS = Path(__file__).with_name("held_out.json")
RUNS = Path("runs/held_out")
KNOWN = "full"
"""The mode of the run that the plan begins with."""
HELD_OUT = ("train", "rollout", "streamer", "full-loglinear")
"""Modes that are planned from it; the others change which environments a batch is made of."""


def planned(run: Path, modes: Sequence[str] = HELD_OUT) -> dict[str, Any]:
    """From the run directory of a run of `full`: how far its replay is off, and seconds per step of `modes`.

    Raises:
        ValueError: it holds too little.
    """
    known = replay(run)
    seconds = {}
    for mode in modes:
        settings = changed(known.job, BENCH_MODES[mode].overrides).settings
        seconds[mode] = round(foresee(mode, settings, known.times, draws=4).step_s, 3)
    return {"replay": round(known.error, 4), "planned": seconds, "measured": {mode: [] for mode in modes}}


def known_run(scenario: str) -> dict[str, Any]:
    """Make the run of `full`, and plan from it.

    Raises:
        ValueError: the run failed.
    """
    directory = RUNS / scenario
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _cell(scenario, KNOWN, 0).measured_in(directory.absolute())
    return planned(directory / "run")


def _cell(scenario: str, mode: str, repetition: int) -> BenchCell:
    return BenchCell(scenario=scenario, mode=mode, repetition=repetition, warm_up=WARM_UP, steps=STEPS)


def errors(found: Mapping[str, Any]) -> Iterator[tuple[str, float, Range, float]]:
    """Of each mode that was run: (mode, planned seconds, measured ones, error of the plan as a share)."""
    for mode, measured in found["measured"].items():
        if (seconds := Range.of(measured)) is not None:
            yield mode, found["planned"][mode], seconds, found["planned"][mode] / seconds.middle - 1.0


def table(results: Mapping[str, Any]) -> str:
    """A line per scenario and mode."""
    rows = [
        [
            f"`{scenario}`",
            f"`{mode}`",
            seconds.words(),
            f"{plan:.2f}",
            f"{error:+.1%}",
            str(len(found["measured"][mode])),
        ]
        for scenario, found in results.items()
        for mode, plan, seconds, error in errors(found)
    ]
    return markdown(["scenario", "mode", "measured s a step", "planned", "error", "runs"], rows)


def main(
    scenario: Annotated[list[str], typer.Option(help="Of the bench.")],
    repetitions: Annotated[int, typer.Option(help="Of every mode, interleaved.")] = 1,
) -> None:
    """Run what is missing, and print the table."""
    kept = Kept(RESULTS)
    for name in scenario:
        if name not in kept.results:
            kept.add(name, known_run(name))
    for repetition in range(repetitions):
        for name in scenario:
            found = kept.results[name]
            for mode, measured in found["measured"].items():
                if len(measured) <= repetition:
                    result = _cell(name, mode, repetition).run()
                    if "error" in result:
                        raise RuntimeError(f"{name} {mode}: {result['error']}")
                    measured.append(round(result["step_s"], 3))
                    kept.add(name, found)
                    typer.echo(f"{name} {mode}: {measured[-1]:.2f} s, planned {found['planned'][mode]:.2f}")
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
