"""The view of a run in a terminal: a line per step, a progress bar, and a summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from rlinf_async.observe.diagnosis import Diagnosis
from rlinf_async.observe.failures import count_failures
from rlinf_async.observe.meters import Spread, StepReport
from rlinf_async.observe.pace import Pace, clock
from rlinf_async.observe.step_table import Line, StepTable, sign_of
from rlinf_async.observe.summary import RunSummary

PLAIN_WIDTH = 120
"""Columns of a pipe, a log file and a notebook, which have no width of their own."""
ROOMY_WIDTH, WIDE_WIDTH = 100, 150
"""Least columns for the time that has passed, and for a sentence."""
CURVE_CHARACTERS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


class TimeLeft(ProgressColumn):
    """The time that the remaining steps will take; it counts down while one of them goes on."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        seconds = task.fields["left"]
        if seconds is None:
            return Text("")
        passed = (task.get_time() - task.fields["reported"]) if not task.finished else 0.0
        return Text(f"{clock(max(0.0, seconds - passed))} left", style="cyan")


class RunDisplay:
    """Prints the progress of a run and sums it up.

    A terminal has a bar below the lines of the steps. Elsewhere, in a pipe, a log file or a notebook, each
    line says the time of day and the time left.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._pace = Pace()
        self._table: StepTable | None = None
        self._progress: Progress | None = None

    def start(self, title: str, *, step: int, total: int) -> None:
        """Print the header; the bar begins at `step`."""
        self._print(Text(title, style="bold"))
        self._lay_out(total)
        if not self._has_bar:
            return
        self._progress = Progress(*_columns(self.console.width), console=self.console, transient=True)
        self._task = self._progress.add_task(
            "steps", total=total, completed=step, left=None, reported=0.0, curve="", bound=""
        )
        self._progress.start()

    def step(self, report: StepReport) -> None:
        """Print one step."""
        self._pace.add(report)
        remaining = self._pace.left(report)
        table = self._lay_out(report.total)
        line = Line(
            report=report,
            time_of_day=time.strftime("%H:%M:%S"),
            trend=sign_of(self._pace.trend, ascii_only=self.console.options.ascii_only),
            elapsed=self._pace.elapsed,
            left=remaining,
        )
        self._print(table.row(line), soft_wrap=True)
        if self._progress is not None:
            self._progress.update(
                self._task,
                completed=report.step,
                left=remaining,
                reported=self._progress.get_time(),
                curve=_curve(self._pace.curve(), report, ascii_only=self.console.options.ascii_only),
                bound=Diagnosis.of(report.busiest).sentence("this step"),
            )

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def note(self, text: str) -> None:
        """Print a remark above the bar."""
        self._print(text, markup=False)

    def summary(self, summary: RunSummary, run_dir: str) -> None:
        """Print what the run did."""
        table = Table(title="Summary", show_header=False, title_justify="left")
        rate = f"{summary.env_steps_per_second:.0f}  ({summary.env_steps} in {summary.seconds:.0f} s)"
        table.add_row("fresh env steps/s", rate)
        for name, share in summary.busy.items():
            table.add_row(f"busy {name}", f"{share:.0%}")
        if summary.bound is not None:
            table.add_row("bound", summary.bound.sentence())
        table.add_row("staleness min/mean/max", _spread(summary.staleness))
        table.add_row("batch size min/mean/max", _spread(summary.batch_size))
        table.add_row("success rate", _success(summary))
        table.add_row("trajectories", str(summary.ledger))
        if (faults := count_failures(Path(run_dir))).kinds:
            table.add_row("outlived", f"{faults}  (failures.jsonl)")
        table.add_row("run directory", escape(run_dir))
        table.add_row("look closer", escape(report_command(run_dir)))
        self._print(table)

    def _print(self, *what: RenderableType, **options: Any) -> None:
        """Print, and ignore a closed output: environments of this process may have closed it, which ends
        no run.
        """
        with suppress(OSError, ValueError):
            self.console.print(*what, **options)

    @property
    def _has_bar(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def _lay_out(self, total: int) -> StepTable:
        """The table for the width that the terminal has now; where its columns are others, its header."""
        table = StepTable(width=self.console.width, total=total, bar=self._has_bar)
        if self._table is None or table.names != self._table.names:
            self._print(table.header(), soft_wrap=True)
        self._table = table
        return table


def report_command(run_dir: str | Path) -> str:
    """The command that makes a page of a run, to be pasted."""
    return f"rlinf-async report {shlex.quote(str(run_dir))}"


def _console() -> Console:
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    # A notebook would show every line as an output of its own, and ask for widgets to draw a bar.
    return Console(highlight=False, width=PLAIN_WIDTH, force_jupyter=False)


def _columns(width: int) -> list[ProgressColumn]:
    """Bar, count and time left in any width; the curve, the time passed and a sentence as far as they fit."""
    columns: list[ProgressColumn] = [
        BarColumn(20 if width < ROOMY_WIDTH else 40),
        MofNCompleteColumn(),
        TimeLeft(),
    ]
    if width >= ROOMY_WIDTH:
        columns.insert(2, TimeElapsedColumn())
    columns.append(TextColumn("{task.fields[curve]}", markup=False))
    if width >= WIDE_WIDTH:
        once = Column(no_wrap=True, overflow="ellipsis")
        columns.append(TextColumn("[dim]{task.fields[bound]}", table_column=once))
    return columns


def _curve(values: Sequence[float], report: StepReport, *, ascii_only: bool) -> str:
    """`success ▁▃▆ 61%`, or the return where there is no success; without blocks if they cannot be shown."""
    if not values:
        return ""
    low, high = (min(values), max(values)) if report.success is None else (0.0, 1.0)
    places = [(value - low) / (high - low) if high > low else 0.5 for value in values]
    blocks = (
        ""
        if ascii_only
        else "".join(CURVE_CHARACTERS[round(place * (len(CURVE_CHARACTERS) - 1))] for place in places) + " "
    )
    if report.success is None:
        return f"return {blocks}{values[-1]:.3g}"
    return f"success {blocks}{values[-1]:.0%}"


def _spread(spread: Spread) -> str:
    return f"{spread.low:g} / {spread.mean:.2f} / {spread.high:g}" if spread.count else "-"


def _success(summary: RunSummary) -> str:
    if summary.success is None:
        return "not reported by this environment"
    first, last = summary.success
    return f"{first:.0%} -> {last:.0%}  (means of the first and last {summary.window} steps)"
