"""Runs of minutes under constant faults; `make nightly` makes all of them.

    python -m benchmarks.long_runs                      prints the stored results
    python -m benchmarks.long_runs "kills, rlinf"       makes this run anew, and stores its result
    python -m benchmarks.long_runs "kills, local" --minutes 2

Stated before the first run:
  - A run with a kill every 20 s has passed if it goes on for ten minutes, ends in order on SIGTERM, and
    accounts for every trajectory, and if in the last six of the ten minutes the memory, descriptors and files
    in memory grow by at most 1 % a minute, for each process that lives at least a minute and for all
    together.
  - A run with one killed process has passed if it trains all of its steps, accounts for every trajectory and
    leaves no process behind.
  - A resume from the checkpoints of a run that still writes them has passed if it begins at a whole
    checkpoint and trains on while the writer goes on, and if a resume in the writer's own directory is
    refused.
  - Two runs on one cluster have passed if both end as they would alone, and the cluster stays up.

Changed after the first runs under kills:
  - A process that was started during the run is judged from its second minute on: a successor that imports
    and builds its models had counted as growth.
  - "All together" are those that live throughout: a sum over all goes up and down with each kill.
  - Up to two descriptors over all of the time are no growth: as many come and go with a peer.
  - Descriptors of Ray's log monitor are not judged: it keeps log files of up to 200 processes open, of dead
    ones, too.
  - Files in memory are counted where they are fewest in each half minute (changed after RLinf's third run,
    before its fourth): their number goes up and down with each batch.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.long_runs import scenarios
from benchmarks.result_store import ResultStore
from rlinf_async.lab.table import markdown

RESULTS_FILE = Path(__file__).with_name("results.json")
RUNS_FOLDER = Path("runs/long_runs")
DEFAULT_MINUTES, KILL_INTERVAL_S = 10.0, 20.0
VICTIM_PROCESSES = ("raylet", "coordinator 0", "request channel 0", "simulator")

Scenario = Callable[[Path, float], dict[str, Any]]


def _kills(host: str) -> Scenario:
    return lambda directory, minutes: scenarios.kills(
        host, directory, minutes=minutes, every_s=KILL_INTERVAL_S
    )


def _one_killed(victim: str) -> Scenario:
    return lambda directory, _: scenarios.one_killed(victim, directory)


SCENARIOS_BY_NAME: dict[str, Scenario] = {
    **{f"kills, {host}": _kills(host) for host in ("local", "rlinf", "verl")},
    **{f"{victim} killed": _one_killed(victim) for victim in VICTIM_PROCESSES},
    "resumed beside its writer": lambda directory, _: scenarios.resumed_beside_its_writer(directory),
    "two runs on one cluster": lambda directory, _: scenarios.two_on_one_cluster(directory),
}
"""Scenarios by name; each takes a directory, and its length in minutes (used only by runs under kills)."""


def measure(name: str, directory: Path, *, minutes: float = DEFAULT_MINUTES) -> dict[str, Any]:
    """Empty `directory`, run the scenario `name` in it, and return its result."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    found = SCENARIOS_BY_NAME[name](directory / "run" if name.startswith("kills") else directory, minutes)
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per scenario."""
    rows = []
    for name, found in results.items():
        steep = found.get("steepest_a_minute", {})
        rows.append(
            [
                name,
                "yes" if found["passed"] else "**no**",
                f"{found['seconds']:.0f}",
                *(_share(steep.get(what)) for what in ("memory", "descriptors", "shared")),
            ]
        )
    return markdown(["run", "passed", "seconds", "memory", "descriptors", "files in memory"], rows)


def _share(steepest: Any) -> str:
    return "–" if steepest is None else f"{steepest[1]:+.2%} ({re.sub(r' [0-9]+$', '', steepest[0])})"


def main(
    name: Annotated[
        str, typer.Argument(help="The run to make; without a name, only print the results.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="Length of a run under kills.")] = DEFAULT_MINUTES,
) -> None:
    """Make one run, store its result, and print all results."""
    store = ResultStore(RESULTS_FILE)
    if name and name not in SCENARIOS_BY_NAME:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(SCENARIOS_BY_NAME)}")
    if name:
        found = measure(name, RUNS_FOLDER / name.replace(" ", "-").replace(",", ""), minutes=minutes)
        store = ResultStore(RESULTS_FILE)  # another run may have been added meanwhile
        store.add(name, found)
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
