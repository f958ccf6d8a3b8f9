"""The command that looks at a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rlinf_async.cli.arguments import AsJson, RunDir, console, or_exit


def status(
    run: RunDir,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also the stacks of all its processes on this machine.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Again every two seconds, until the run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a run is doing right now, and who waits for what."""
    from rlinf_async.observe.stacks import stacks_of
    from rlinf_async.observe.status import status_facts, status_of
    from rlinf_async.observe.watch import show_watched, watch

    if as_json:
        looks = watch(run) if watching else iter([or_exit(status_facts, run)])
        or_exit(_echo_each, looks)
        return
    if watching:
        or_exit(show_watched, watch(run), console)
        return

    for line in or_exit(status_of, run):
        console.print(line, markup=False, soft_wrap=True)
    for name, stack in stacks_of(run) if stacks else ():
        console.print(f"\n[bold]{name}[/]")
        console.print(stack, markup=False, soft_wrap=True)


def _echo_each(looks: Iterable[Mapping[str, Any]]) -> None:
    for facts in looks:
        typer.echo(json.dumps(facts))
