"""The command that predicts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rlinf_async.cli.arguments import RunDir, console, or_exit


def plan(
    run: RunDir,
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
    """Predict other settings of a run from its trace, without running them."""
    from rlinf_async.lab.plan import command

    proposal = or_exit(lambda: command.plan_run(run, tries=tried or []))
    command.show(proposal, console)
    if output is not None:
        say = partial(console.print, markup=False, soft_wrap=True)
        or_exit(lambda: command.write(proposal, output, say=say))
    if not proposal.replayed.close:
        raise typer.Exit(1)
