"""The commands: one per experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.learning import experiments
from benchmarks.learning.campaign import console, run_all
from benchmarks.learning.cells import Cell

LEARNING = Path("docs/learning.md")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Jobs = Annotated[int, typer.Option(help="Runs at a time; runs on RLinf have the machine to themselves.")]
Seeds = Annotated[int, typer.Option(help="Runs that have a result are not run again.")]


@app.command(hidden=True)
def cell(text: str) -> None:
    """Run one cell, given as JSON."""
    run = Cell.from_json(text)
    if run.host == "local":
        from benchmarks.learning import local_cell as host
    else:
        from benchmarks.learning import rlinf_cell as host
    host.run(run)


@app.command()
def equivalence(seeds_local: Seeds = 5, seeds_rlinf: Seeds = 2, jobs: Jobs = 2) -> None:
    """Does `full` learn what the synchronous loop learns? On both hosts."""
    failed = run_all(experiments.equivalence("local", seeds_local), jobs=jobs)
    failed += run_all(experiments.equivalence("rlinf", seeds_rlinf), jobs=1)
    _report("equivalence", "hosts")
    _end(failed)


@app.command()
def staleness(seeds: Seeds = 3, jobs: Jobs = 2) -> None:
    """What does a fixed lag cost, and which correction pays it back?"""
    failed = run_all(experiments.staleness(seeds), jobs=jobs)
    _report("staleness")
    _end(failed)


@app.command()
def levels(seeds: Seeds = 3, jobs: Jobs = 2) -> None:
    """What does each level do to learning by itself?"""
    failed = run_all(experiments.levels(seeds), jobs=jobs)
    _report("levels")
    _end(failed)


@app.command()
def preregistered(
    only: Annotated[list[str] | None, typer.Option(help="A setting; all by default.")] = None,
    jobs: Jobs = 2,
    report: Annotated[bool, typer.Option("--report", help="Run nothing.")] = False,
) -> None:
    """The setting of the speed claims: all levels on. What is tested, and how, is in preregistration.yaml."""
    from benchmarks.learning import pages
    from benchmarks.learning import preregistered as campaign
    from benchmarks.learning.preregistration import load

    failed = 0
    if not report:
        wanted = [one for one in load().settings if not only or one.name in only]
        failed += campaign.run_all(
            campaign.missing(one for one in wanted if one.host == "local"), processes=jobs
        )
        failed += campaign.run_all(
            campaign.missing(one for one in wanted if one.host == "rlinf"), processes=1
        )
    for path in pages.write(load()):
        console.print(f"wrote {path}")
    pages.publish(load(), LEARNING)
    raise typer.Exit(1 if failed else 0)


@app.command()
def corrections(
    jobs: Jobs = 2, report: Annotated[bool, typer.Option("--report", help="Run nothing.")] = False
) -> None:
    """Which correction should be the default? At fixed lags, as preregistration.yaml states it."""
    from benchmarks.learning import corrections as experiment
    from benchmarks.learning import preregistered as campaign
    from benchmarks.learning.preregistration import load

    wanted = [] if report else campaign.missing(experiment.settings(load()))
    failed = campaign.run_all(wanted, processes=jobs)
    console.print(f"wrote {experiment.write(load())}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def report() -> None:
    """Write every table and picture of the earlier experiments from their results; nothing is run."""
    _report("equivalence", "staleness", "levels", "hosts")


def _report(*names: str) -> None:
    # Here, so that a cell's process imports neither matplotlib nor scipy.
    from benchmarks.learning import data, plots, reports

    results = data.load()
    for name in names:
        for path in (*reports.REPORTS[name](results), plots.PLOTS[name](results)):
            if path:
                console.print(f"wrote {path}")


def _end(failed: Sequence[Cell]) -> None:
    """Status 1 if a run failed; the report says which are missing."""
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
