"""Commands that make a file of the directories of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from rlinf_async.cli.arguments import RunDir, console, or_exit


def trace(
    run: RunDir,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .json or .json.gz; default: RUN/trace.json."),
    ] = None,
) -> None:
    """Write what every process of a run did when into a file that Perfetto opens (ui.perfetto.dev)."""
    from rlinf_async.lab.trace import write_trace

    path = output or run / "trace.json"
    console.print(f"{or_exit(write_trace, run, path)} spans in {path}; open it at ui.perfetto.dev")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Make a page of one run or of several: what bounds it, who waits for what, and what to change."""
    from rlinf_async.lab.report.page import write_report

    page = or_exit(write_report, runs, output)
    console.print(f"a page of {decimal(page.stat().st_size)} in {page}", markup=False, soft_wrap=True)
