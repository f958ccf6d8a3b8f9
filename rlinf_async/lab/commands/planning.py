"""The command that predicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rlinf_async.cli.arguments import RUN_DIR, console, or_exit


def plan(
    run: Annotated[Path | None, RUN_DIR] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="In the place of a run: a table of step times (CSV or YAML) by placement, ratio and GPUs."
        ),
    ] = None,
    calibrate: Annotated[
        int | None,
        typer.Option(min=1, help="Synchronous rows of each workload to calibrate on, default 4."),
    ] = None,
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", help="Overrides to predict too, separated by commas; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write into this folder the plan as plain data, and the fastest run as a run directory.",
        ),
    ] = None,
) -> None:
    """Predict other settings of a run from its trace, or other placements and more GPUs from a table of step
    times, without running them.
    """
    from rlinf_async.lab.plan import command

    say = partial(console.print, markup=False, soft_wrap=True)
    if rows is not None:
        if run is not None or tried:
            raise typer.BadParameter("a table has no RUN and no --try beside it", param_hint="--rows")
        _plan_rows(rows, calibrate, output, say)
        return
    if run is None:
        raise typer.BadParameter("give the directory of a run, or --rows FILE", param_hint="RUN")
    if calibrate is not None:
        raise typer.BadParameter("is for --rows alone", param_hint="--calibrate")
    proposal = or_exit(lambda: command.plan_run(run, tries=tried or []))
    command.show(proposal, console)
    if output is not None:
        or_exit(lambda: command.write(proposal, output, say=say))
    if not proposal.replayed.close:
        raise typer.Exit(1)


def _plan_rows(table: Path, count: int | None, output: Path | None, say: Callable[[str], None]) -> None:
    from rlinf_async.lab.plan.rows import command

    planned = or_exit(lambda: command.plan_rows(table, count=count or command.CALIBRATING_ROWS))
    command.show(planned, console)
    if output is not None:
        or_exit(lambda: command.write(planned, output, say=say))
