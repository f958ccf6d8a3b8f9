"""Test how well a plan from one run predicts the step seconds of other modes.

    python -m benchmarks.schedules.held_out --scenario libero

For each scenario one run of `full` is made on Ray. The step seconds of the other modes are then predicted
from its trace alone, as `rlinf-async plan` does for a user, and stored; only then are the other modes run.
The prediction uses neither the bench's service times nor a fit to the bench's cells. A run that is in
`held_out.json` is not repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.result_store import ResultStore
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.command import STEPS, WARM_UP
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import BENCH_MODES
from rlinf_async.lab.plan.job import changed
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import replay
from rlinf_async.lab.table import Range, markdown

RESULTS_FILE = Path(__file__).with_name("held_out.json")
RUNS_FOLDER = Path("runs/held_out")
KNOWN_MODE = "full"
"""The mode of the run that the predictions are made from."""
HELD_OUT_MODES = ("train", "rollout", "streamer", "full-loglinear")
"""The predicted modes; all other modes change which environments a batch is made of."""
EARLY_END_MODES = ("lean", "levels")
"""The predicted modes of scenarios with episodes that end early: these scenarios are about dead work."""


def predicted_modes(scenario: str) -> Sequence[str]:
    """Return the modes that are predicted for the scenario of that name."""
    return EARLY_END_MODES if SCENARIOS_BY_NAME[scenario].ends_early else HELD_OUT_MODES


def planned(run: Path, modes: Sequence[str] = HELD_OUT_MODES) -> dict[str, Any]:
    """Return the replay error of a run of `full`, and the step seconds of `modes` predicted from the run.

    Raises:
        ValueError: the run directory `run` holds too little.
    """
    known = replay(run)
    seconds = {}
    for mode in modes:
        settings = changed(known.job, BENCH_MODES[mode].overrides).settings
        seconds[mode] = round(foresee(mode, settings, known.times, draws=4).step_s, 3)
    return {"replay": round(known.error, 4), "planned": seconds, "measured": {mode: [] for mode in modes}}


def known_run(scenario: str) -> dict[str, Any]:
    """Make the run of `full`, and predict the other modes from it.

    Raises:
        ValueError: the run failed.
    """
    directory = RUNS_FOLDER / scenario
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    _cell(scenario, KNOWN_MODE, 0).measured_in(directory.absolute())
    return planned(directory / "run", predicted_modes(scenario))


def _cell(scenario: str, mode: str, repetition: int) -> BenchCell:
    return BenchCell(scenario=scenario, mode=mode, repetition=repetition, warm_up=WARM_UP, steps=STEPS)


def errors(found: Mapping[str, Any]) -> Iterator[tuple[str, float, Range, float]]:
    """Yield for each measured mode: mode, planned seconds, measured seconds, relative error of the plan."""
    for mode, measured in found["measured"].items():
        if (seconds := Range.of(measured)) is not None:
            yield mode, found["planned"][mode], seconds, found["planned"][mode] / seconds.middle - 1.0


def table(results: Mapping[str, Any]) -> str:
    """Return a Markdown table with a line per scenario and mode."""
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
    scenario: Annotated[list[str], typer.Option(help="A scenario of the bench.")],
    repetitions: Annotated[int, typer.Option(help="Runs of every mode, interleaved.")] = 1,
) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for name in scenario:
        if name not in store.results:
            store.add(name, known_run(name))
    for repetition in range(repetitions):
        for name in scenario:
            found = store.results[name]
            for mode, measured in found["measured"].items():
                if len(measured) <= repetition:
                    result = _cell(name, mode, repetition).run()
                    if "error" in result:
                        raise RuntimeError(f"{name} {mode}: {result['error']}")
                    measured.append(round(result["step_s"], 3))
                    store.add(name, found)
                    typer.echo(f"{name} {mode}: {measured[-1]:.2f} s, planned {found['planned'][mode]:.2f}")
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
