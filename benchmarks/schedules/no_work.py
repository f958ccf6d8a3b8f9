"""Compare `full` with RLinf's synchronous loop where nothing is to be waited for: simulators, forward passes
and training take next to no time, so that only the machinery is left.

    python -m benchmarks.schedules.no_work --repetitions 3
    python -m benchmarks.schedules.no_work --report

A pair of runs that is in `no_work.json` is not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.result_store import ResultStore
from benchmarks.schedules.shards import in_words
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME, PolicyService, Scenario
from rlinf_async.lab.emulated.service import EnvService
from rlinf_async.lab.table import markdown

RESULTS_FILE = Path(__file__).with_name("no_work.json")
WARM_UP, STEPS = 8, 12
"""Unmeasured steps, in which `full` chooses its number of shards, and measured steps of a run."""
SYNCHRONOUS, FULL = "stock-sync-1", "full"
MEASURES = ("fresh_steps_per_s", "cpu_ms")
NO_WORK = Scenario(
    name="no-work",
    what="64 environments and a policy that take next to no time, 32 decisions a rollout",
    env=EnvService(),
    policy=PolicyService(act_fixed_s=1e-5, act_sample_s=0.0, train_sample_s=0.0),
    decisions=32,
)


def main(
    repetitions: int = 3,
    report: Annotated[bool, typer.Option(help="only print what is there")] = False,
) -> None:
    """Run the missing pairs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for repetition in range(0 if report else repetitions):
        name = f"#{repetition + 1}"
        if name not in store.results:
            # First one, then the other, as the load of the machine may rise or fall.
            modes = (SYNCHRONOUS, FULL) if repetition % 2 == 0 else (FULL, SYNCHRONOUS)
            store.add(name, {mode: _run(mode, repetition) for mode in modes})
            print(name, json.dumps(store.results[name]), flush=True)
    print(markdown(["decisions", "CPU a decision", "runs"], rows(store.results)))


def _run(mode: str, repetition: int) -> dict[str, float]:
    """Return the measures of a run of `mode`.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    SCENARIOS_BY_NAME[NO_WORK.name] = NO_WORK
    cell = BenchCell(scenario=NO_WORK.name, mode=mode, repetition=repetition, warm_up=WARM_UP, steps=STEPS)
    measured = cell.run()
    if "error" in measured:
        raise RuntimeError(f"the run of {mode} failed: {measured['error']}")
    return {name: measured[name] for name in MEASURES}


def rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the row of `full`: medians of its ratios over the synchronous loop, by pairs."""
    yield [
        *(
            in_words([pair[FULL][name] / pair[SYNCHRONOUS][name] for pair in results.values()])
            for name in MEASURES
        ),
        str(len(results)),
    ]


if __name__ == "__main__":
    typer.run(main)
