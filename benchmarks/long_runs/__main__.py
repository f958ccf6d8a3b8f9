"""Runs of minutes that are hurt all the time; `make nightly` makes all of them.

    python -m benchmarks.long_runs                      shows what was seen
    python -m benchmarks.long_runs "kills, rlinf"       makes that one anew, and keeps what it came to
    python -m benchmarks.long_runs "kills, local" --minutes 2

Stated before the first run. Under kills every 20 s a run has passed if it goes on for ten minutes, ends in
order when it is told to, accounts for every trajectory, and if no process that lives for a minute, nor all
together, holds by more than 1 % a minute more memory, descriptors or files in memory, in the last six of
the ten minutes. A run of which one process is killed has passed if it trains all of its steps, accounts for
every trajectory and leaves no process behind. A resume beside the run that writes has passed if it begins at
a whole checkpoint and trains on, while the other one goes on, and if a resume on the directory of that run
is refused. Two runs on one cluster have passed if both end as they would alone, and the cluster lives on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.kept import Kept
from benchmarks.long_runs import scenarios
from rlinf_async.lab.table import markdown

RESULTS = Path(__file__).with_name("results.json")
RUNS = Path("runs/long_runs")
MINUTES, EVERY_S = 10.0, 20.0
VICTIMS = ("raylet", "coordinator 0", "request channel 0", "simulator")

Scenario = Callable[[Path, float], dict[str, Any]]


def _kills(host: str) -> Scenario:
    return lambda directory, minutes: scenarios.kills(host, directory, minutes=minutes, every_s=EVERY_S)


def _one_killed(who: str) -> Scenario:
    return lambda directory, _: scenarios.one_killed(who, directory)


SCENARIOS: dict[str, Scenario] = {
    **{f"kills, {host}": _kills(host) for host in ("local", "rlinf", "verl")},
    **{f"{who} killed": _one_killed(who) for who in VICTIMS},
    "resumed beside its writer": lambda directory, _: scenarios.resumed_beside_its_writer(directory),
    "two runs on one cluster": lambda directory, _: scenarios.two_on_one_cluster(directory),
}
"""By name; each takes a directory, and the minutes that it is to last if that can be chosen."""


def measure(name: str, directory: Path, *, minutes: float = MINUTES) -> dict[str, Any]:
    """Make one of `SCENARIOS` in `directory`, which is made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    found = SCENARIOS[name](directory / "run" if name.startswith("kills") else directory, minutes)
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def table(results: dict[str, Any]) -> str:
    """A line per scenario."""
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
    return (
        "–" if steepest is None else f"{steepest[1]:+.2%} ({steepest[0].rpartition(' ')[0] or steepest[0]})"
    )


def main(
    name: Annotated[str, typer.Argument(help="One of the runs; none shows all.")] = "",
    minutes: Annotated[float, typer.Option(help="Of a run under kills.")] = MINUTES,
) -> None:
    """Make one run, keep what it came to, and show all."""
    kept = Kept(RESULTS)
    if name and name not in SCENARIOS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(SCENARIOS)}")
    if name:
        found = measure(name, RUNS / name.replace(" ", "-").replace(",", ""), minutes=minutes)
        kept = Kept(RESULTS)  # another run may have been added meanwhile
        kept.add(name, found)
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
