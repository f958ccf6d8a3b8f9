"""The commands, one for each experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.learning import data
from benchmarks.learning.campaign import console, run_all
from benchmarks.learning.cells import Cell

LEARNING_PAGE = Path("benchmarks/learning/measurements.md")
VERL_PAGE = Path("docs/verl.md")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Jobs = Annotated[int, typer.Option(help="Runs at a time; runs on RLinf always run one by one.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds; runs with a result are not repeated.")]


@app.command()
def equivalence(seeds_local: Seeds = 5, seeds_rlinf: Seeds = 2, jobs: Jobs = 2) -> None:
    """Compare learning by `full` with the synchronous loop, on both hosts."""
    failed = _run(data.equivalence("local", seeds_local), jobs)
    failed += _run(data.equivalence("rlinf", seeds_rlinf), 1)
    _report("equivalence")
    _end(failed)


@app.command()
def staleness(seeds: Seeds = 3, jobs: Jobs = 2) -> None:
    """Measure the cost of a fixed lag under each correction."""
    failed = _run(data.staleness(seeds), jobs)
    _report("staleness")
    _end(failed)


@app.command()
def preregistered(
    only: Annotated[list[str] | None, typer.Option(help="A setting to run; without it, all.")] = None,
    jobs: Jobs = 2,
    report: Annotated[bool, typer.Option("--report", help="Only write the reports.")] = False,
) -> None:
    """Compare all levels on with the synchronous loop; preregistration.yaml states tests and rules."""
    from benchmarks.learning import gains, pages
    from benchmarks.learning.preregistration import load, missing

    settings = [one for one in load().settings if not report and (not only or one.name in only)]
    failed = run_all(missing(one for one in settings if one.host == "local"), processes=jobs)
    failed += run_all(missing(one for one in settings if one.host == "rlinf"), processes=1)
    found = gains.gains(load())
    for path in (*pages.write(load()), *gains.write(found)):
        console.print(f"wrote {path}")
    pages.publish(load(), LEARNING_PAGE)
    _end(failed)


@app.command()
def evidence() -> None:
    """Write what all stored comparisons say against the synchronous curve itself; nothing is run."""
    from benchmarks.learning import evidence as shown
    from benchmarks.learning import plots

    found = shown.findings()
    for path in (*shown.write(found), plots.forest([one.as_json() for one in found])):
        console.print(f"wrote {path}")
    shown.publish(found)


@app.command()
def corrections(
    jobs: Jobs = 2, report: Annotated[bool, typer.Option("--report", help="Only write the reports.")] = False
) -> None:
    """Compare corrections and anchors at fixed lags, as preregistration.yaml states it."""
    from benchmarks.learning import corrections as experiment
    from benchmarks.learning.preregistration import load, missing

    failed = run_all([] if report else missing(experiment.settings(load())), processes=jobs)
    console.print(f"wrote {experiment.write(load())}")
    _end(failed)


@app.command()
def verl(
    at_most: Annotated[int | None, typer.Option(help="Largest number of missing runs to make now.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Only write the reports.")] = False,
) -> None:
    """Compare `full` with `off` on the demo under veRL, as preregistration.yaml states it; needs veRL."""
    from benchmarks.learning import under_verl
    from benchmarks.learning.preregistration import load

    missing = [cell for cell in under_verl.runs(load()) if not cell.path.exists()]
    failed = run_all([] if report else missing[:at_most], processes=1)
    for path in under_verl.write(load()):
        console.print(f"wrote {path}")
    for page in (LEARNING_PAGE, VERL_PAGE):
        under_verl.publish(load(), page)
    _end(failed)


@app.command()
def peers(report: Annotated[bool, typer.Option("--report", help="Only write the reports.")] = False) -> None:
    """Compare RLinf's own asynchronous PPO with `full`, as preregistration.yaml states it."""
    from benchmarks.learning import peers as experiment
    from benchmarks.learning import plots
    from benchmarks.learning.preregistration import load

    missing = [one for one in experiment.runs(load()) if not one.path.exists()]
    failed = run_all([] if report else missing, processes=1)
    console.print(f"wrote {experiment.write(load())}")
    plan, found = load().peers, experiment.curves(load())
    panel = plots.Reached(curves=found, label=plots.SECONDS_LABEL, most=100)
    drawn = plots.success_over([panel], plan["level"], name="peers.png")
    console.print(f"drew {drawn}")
    experiment.publish(load(), LEARNING_PAGE)
    _end(failed)


@app.command()
def report() -> None:
    """Write the tables and pictures of `equivalence` and `staleness` from their results, without running
    them.
    """
    _report("equivalence", "staleness")


def _run(cells: Sequence[Cell], jobs: int) -> list[Cell]:
    """Run every cell without a result; return the failed ones."""
    missing = [cell for cell in cells if not cell.path.exists()]
    console.print(f"{len(cells)} runs, {len(cells) - len(missing)} are there already")
    return run_all(missing, processes=jobs)


def _report(*names: str) -> None:
    # Imported here: matplotlib and scipy take seconds.
    from benchmarks.learning import data, plots, reports

    results = data.load()
    for name in names:
        for path in (*reports.REPORT_BY_NAME[name](results), plots.PLOT_BY_NAME[name](results)):
            if path:
                console.print(f"wrote {path}")


def _end(failed: Sequence[object]) -> None:
    """Exit, with status 1 if a run failed; the report names the missing runs."""
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
