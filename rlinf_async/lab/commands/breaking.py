"""The command that injects faults."""

from __future__ import annotations

from typing import Annotated

import typer

from rlinf_async.cli.arguments import RunDir, console, or_exit
from rlinf_async.lab.commands.comparing import listed


def chaos(
    run: RunDir,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two kills.")] = 20.0,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            help="Which to kill, of simulator, env and inference, separated by commas. All by default."
        ),
    ] = None,
) -> None:
    """Kill processes of a run on this machine, drawn at random, until it ends: what does it outlive?"""
    from rlinf_async.lab.chaos import command
    from rlinf_async.lab.chaos.victims import VICTIM_KINDS

    kinds_to_kill = listed(kinds) or list(VICTIM_KINDS)
    alive = or_exit(lambda: command.chaos(run, console, every_s=every, kinds=kinds_to_kill))
    if not alive:
        raise typer.Exit(1)
