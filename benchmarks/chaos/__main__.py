"""Kill processes of a run at random, and compare it with the same run left alone; the two take turns.

    python -m benchmarks.chaos --steps 150 --every 20 --repetitions 2
    python -m benchmarks.chaos --host verl --steps 150 --every 20 --repetitions 1

The run is the demo with two env workers, two inference ranks and, on RLinf, simulators in processes of their
own. From the third step on, a simulator, an env worker or an inference rank, drawn at random, gets SIGKILL
every `--every` seconds. A run that is in `results.json` is not repeated. `--host verl` needs an environment
with veRL.

Stated before the first run under veRL, as for RLinf: the killed run passes with at least 75 % of the
throughput of the run left alone, no sample staler than the bound, and no trajectory unaccounted for.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos.runs import DEMO_BY_HOST, Outcome, training
from benchmarks.chaos.victims import Killer
from benchmarks.result_store import ResultStore
from rlinf_async.lab.process import OWN_CLUSTER, run_command
from rlinf_async.lab.table import markdown

RESULTS_FILE = Path(__file__).with_name("results.json")
RUNS_FOLDER = Path("runs/chaos")
FIRST_STEP = 3
RESTART_BUDGETS = [
    *(f"async.survive.{who}_restarts=1000" for who in ("process", "env")),
    "async.advanced.window_s=60",
]
"""The experiment measures restarts, so no run may end because there were many of them. The wait before a
restart doubles with each restart within the window: a short window keeps the waits short."""


def run(
    directory: Path, *, host: str, steps: int, every_s: float | None, seed: int, deadline_s: float
) -> Outcome:
    """Train in `directory`; unless `every_s` is None, kill a process every `every_s` seconds."""
    command = training(directory, [*DEMO_BY_HOST[host].settings, *RESTART_BUDGETS], steps=steps, host=host)
    killer = Killer(
        directory,
        every_s=every_s or deadline_s,
        first_step=FIRST_STEP,
        seed=seed,
        kinds=DEMO_BY_HOST[host].kinds,
    )
    killer.start()
    try:
        log = directory.with_suffix(".log")
        status = run_command(command, log, environment=OWN_CLUSTER, deadline_s=deadline_s)
    finally:
        killer.stop()
    return Outcome.of(directory, status=status, killed=[victim.kind for victim in killer.killed])


def name_of(host: str, every_s: float | None, steps: int, repetition: int) -> str:
    side = "left alone" if every_s is None else f"killed every {every_s:g} s"
    return f"{'' if host == 'rlinf' else f'{host}, '}{side}, {steps} steps, {repetition}"


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per run."""
    rows = []
    for name, found in results.items():
        speed = found["env_steps_per_second"]
        rows.append(
            [
                name,
                str(found["status"]),
                str(found["steps"]),
                "–" if speed is None else f"{speed:.0f}",
                words(found["killed"]),
                words(found["restarts"]),
                words(found["refused"]),
                str(found["unaccounted"]),
                f"{found['staleness']:g}",
            ]
        )
    heads = ["run", "status", "steps", "env steps/s", "killed", "restarts", "refused", "unaccounted", "stale"]
    return markdown(heads, rows)


def words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def main(
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 150,
    every: Annotated[float, typer.Option(help="Seconds between two kills.")] = 20.0,
    repetitions: Annotated[int, typer.Option(help="Runs of each side, by turns.")] = 2,
    deadline: Annotated[float, typer.Option(help="Seconds after which a run counts as hung.")] = 1800.0,
    host: Annotated[str, typer.Option(help="rlinf or verl.")] = "rlinf",
) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for repetition, every_s in product(range(repetitions), (None, every)):
        name = name_of(host, every_s, steps, repetition)
        if name not in store.results:
            directory = RUNS_FOLDER / name.replace(",", "").replace(" ", "-")
            found = run(
                directory, host=host, steps=steps, every_s=every_s, seed=repetition, deadline_s=deadline
            )
            store.add(name, found.as_dict())
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
