"""Compare `full`, as it comes, of this checkout and of another one, by turns, in scenarios of the bench.

    python -m benchmarks.schedules.beside --other CHECKOUT --scenario fast,libero --repetitions 3
    python -m benchmarks.schedules.beside --report

The other checkout has an environment of its own (`make setup` there). Each runs its own bench, so that each
measures itself. A pair of runs that is in `beside.json` is not repeated.
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
MEASURES = ("fresh_steps_per_s", "cpu_ms", "own_efficiency")


def main(
    other: Annotated[Path, typer.Option(help="the other checkout")] = REPOSITORY_ROOT,
    scenario: Annotated[str, typer.Option(help="names of scenarios, with commas between them")] = "fast",
    repetitions: int = 3,
    steps: Annotated[int, typer.Option(help="measured steps of a run; the bench's default if 0")] = 0,
    report: Annotated[bool, typer.Option(help="only print what is there")] = False,
) -> None:
    """Run the missing pairs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for repetition in range(0 if report else repetitions):
        for name in scenario.split(","):
            pair = f"{name} #{repetition + 1}"
            if pair not in store.results:
                found = {"this": _run(REPOSITORY_ROOT, name, steps), "other": _run(other, name, steps)}
                store.add(pair, found)
                print(pair, json.dumps(found), flush=True)
    print(
        markdown(
            ["scenario", "decisions", "CPU a decision", "share of its bound", "runs"], rows(store.results)
        )
    )


def _run(checkout: Path, scenario: str, steps: int) -> dict[str, float]:
    """Return the measures of a run of `full` in `checkout`.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, rows_file = Path(folder) / "output.log", Path(folder) / "rows.json"
        what = ("--scenario", scenario, "--modes", "full", "--repetitions", "1", "--output", str(rows_file))
        measured = ("--steps", str(steps)) if steps else ()
        status = run_command(
            [str(checkout.resolve() / ".venv/bin/rlinf-async"), "bench", *what, *measured],
            log,
            directory=checkout,
            environment={**OWN_CLUSTER, "OMP_NUM_THREADS": "1"},
            deadline_s=DEADLINE_S,
        )
        if status:
            raise RuntimeError(f"the bench in {checkout.name} ended with status {status}: {tail(log)}")
        (row,) = json.loads(rows_file.read_text())["rows"]
    if "error" in row:
        raise RuntimeError(f"the run in {checkout.name} failed: {row['error']}")
    return {name: row[name] for name in MEASURES}


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
