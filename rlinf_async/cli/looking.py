"""Commands that look at the directory of a run, while it goes on or afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from rlinf_async.cli.arguments import AsJson, RunDir, console, or_exit


def trace(
    run: RunDir,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .json or .json.gz; default: RUN/trace.json."),
    ] = None,
) -> None:
    """Write what every process of a run did when into a file that Perfetto opens (ui.perfetto.dev)."""
    from rlinf_async.observe.trace.command import write_trace

    path = output or run / "trace.json"
    console.print(f"{or_exit(write_trace, run, path)} spans in {path}; open it at ui.perfetto.dev")


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


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Make a page of one run or of several: what bounds it, who waits for what, and what to change."""
    from rlinf_async.observe.report.page import write_report

    page = or_exit(write_report, runs, output)
    console.print(f"a page of {decimal(page.stat().st_size)} in {page}", markup=False, soft_wrap=True)


def _echo_each(looks: Iterable[Mapping[str, Any]]) -> None:
    for facts in looks:
        typer.echo(json.dumps(facts))
