"""Compare `full`, as it comes, of this checkout and of another one, by turns, in scenarios of the bench.

    python -m benchmarks.schedules.beside --other CHECKOUT --scenario fast,libero --repetitions 3
    python -m benchmarks.schedules.beside --report

The other checkout has an environment of its own (`make setup-dev` there). Each runs a cell of its own bench,
so that each measures itself. A pair of runs that is in `beside.json` is not repeated.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.result_store import ResultStore
from benchmarks.schedules.shards import in_words
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.table import markdown

RESULTS_FILE = Path(__file__).with_name("beside.json")
REPOSITORY_ROOT = Path(__file__).parents[2]
DEADLINE_S = 1200.0
WARM_UP, STEPS = 3, 4
"""Unmeasured and measured steps of a run."""
WARM_UP_BY_SCENARIO = {"fast": 8}
"""Unmeasured steps in which `full` chooses its number of shards, twice at most."""
RUN_A_CELL = """
import json, sys
from rlinf_async.lab.bench.cell import BenchCell
print(json.dumps(BenchCell(**json.loads(sys.argv[1])).run()))
"""
MEASURES = ("fresh_steps_per_s", "cpu_ms", "own_efficiency")


def main(
    other: Annotated[Path, typer.Option(help="the other checkout")] = REPOSITORY_ROOT,
    scenario: Annotated[str, typer.Option(help="names of scenarios, with commas between them")] = "fast",
    repetitions: int = 3,
    report: Annotated[bool, typer.Option(help="only print what is there")] = False,
) -> None:
    """Run the missing pairs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for repetition in range(0 if report else repetitions):
        for name in scenario.split(","):
            pair = f"{name} #{repetition + 1}"
            if pair not in store.results:
                # First one, then the other, as the load of the machine may rise or fall.
                turn = 1 if repetition % 2 == 0 else -1
                found = {
                    key: _run(checkout, name, repetition)
                    for key, checkout in [("this", REPOSITORY_ROOT), ("other", other)][::turn]
                }
                store.add(pair, found)
                print(pair, json.dumps(found), flush=True)
    print(
        markdown(
            ["scenario", "decisions", "CPU a decision", "share of its bound", "runs"], rows(store.results)
        )
    )


def _run(checkout: Path, scenario: str, repetition: int) -> dict[str, float]:
    """Return the measures of a run of `full` in `checkout`.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    cell = {
        "scenario": scenario,
        "mode": "full",
        "repetition": repetition,
        "warm_up": WARM_UP_BY_SCENARIO.get(scenario, WARM_UP),
        "steps": STEPS,
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.log"
        status = run_command(
            [str(checkout.resolve() / ".venv/bin/python"), "-c", RUN_A_CELL, json.dumps(cell)],
            log,
            directory=checkout,
            environment={**OWN_CLUSTER, "OMP_NUM_THREADS": "1"},
            deadline_s=DEADLINE_S,
        )
        if status:
            raise RuntimeError(f"the run in {checkout.name} ended with status {status}: {tail(log)}")
        measured = json.loads(log.read_text().splitlines()[-1])
    if "error" in measured:
        raise RuntimeError(f"the run in {checkout.name} failed: {measured['error']}")
    return {name: measured[name] for name in MEASURES}


def rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield a row for each scenario: medians of this checkout's ratios over the other's, by pairs."""
    for scenario in dict.fromkeys(name.split()[0] for name in results):
        pairs = [pair for name, pair in results.items() if name.split()[0] == scenario]
        yield [
            f"`{scenario}`",
            *(
                in_words([pair["this"][name] / pair["other"][name] for pair in pairs])
                for name in MEASURES[:2]
            ),
            in_words([pair["this"]["own_efficiency"] for pair in pairs]),
            str(len(pairs)),
        ]


if __name__ == "__main__":
    typer.run(main)
