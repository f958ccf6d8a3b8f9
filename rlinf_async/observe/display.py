"""The view of a run in a terminal: a line per step, a progress bar, and a summary."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from rlinf_async.observe.events import PARTS, StepReport
from rlinf_async.observe.files import discard
from rlinf_async.observe.meters import Spread
from rlinf_async.observe.pace import clock, seconds
from rlinf_async.observe.state import Diagnosis, RunState

TREND_ARROWS = {1: "\u2191", 0: " ", -1: "\u2193"}
TREND_SIGNS = {1: "+", 0: " ", -1: "-"}
"""Signs for a terminal or a file that can show ASCII only."""
TREND_STYLES = {1: "green", 0: "", -1: "red"}


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """A step with its time of day, and the time spent and left; times in seconds."""

    report: StepReport
    time_of_day: str
    trend: Text
    """The result of `sign_of`."""
    elapsed: float
    left: float | None


@dataclass(frozen=True)
class StepColumn:
    """One column: its name, its width with the space before it, and the function for its cells.

    If not all columns fit, those with the highest `rank` are left out.
    """

    name: str
    width: int
    rank: int
    cell: Callable[[StepLine], str | Text]
    alone: bool = False
    """True for columns that a progress bar replaces."""


def sign_of(trend: int, *, ascii_only: bool) -> Text:
    """Return the sign for a `Pace.trend`."""
    return Text((TREND_SIGNS if ascii_only else TREND_ARROWS)[trend], style=TREND_STYLES[trend])


def _busy(line: StepLine) -> Text:
    """Return the mean busy shares, the largest in bold."""
    shares = [line.report.busy[name].mean for name in PARTS]
    most, text = max(shares), Text()
    for index, share in enumerate(shares):
        text.append("/" if index else "").append(f"{share:.0%}", "bold" if share == most > 0 else "")
    return text


def _rate(line: StepLine) -> str:
    return f"{line.report.env_steps_per_second:.0f}"


def _bound(line: StepLine) -> str:
    diagnosis = Diagnosis.of(line.report.busiest)
    return f"{diagnosis.part} {diagnosis.share:.0%}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


ALL_COLUMNS: Sequence[StepColumn] = (
    StepColumn("time", 8, 0, lambda line: line.time_of_day, alone=True),
    StepColumn("step", 8, 0, lambda line: f"{line.report.step}/{line.report.total}"),
    StepColumn("left", 10, 0, lambda line: clock(line.left), alone=True),
    StepColumn("elapsed", 10, 9, lambda line: clock(line.elapsed)),
    StepColumn("return", 8, 4, lambda line: _number(line.report.episode_return, "{:.2f}")),
    StepColumn("success", 8, 3, lambda line: _number(line.report.success, "{:.0%}")),
    StepColumn("env steps/s", 12, 1, _rate),
    StepColumn("", 2, 1, lambda line: line.trend),
    StepColumn("busy env/inf/learn", 19, 2, _busy),
    StepColumn("stale", 6, 5, lambda line: f"{line.report.staleness.mean:.2f}"),
    StepColumn("batch", 7, 6, lambda line: f"{line.report.batch_size.mean:.1f}"),
    StepColumn("seconds", 9, 1, lambda line: f"{line.report.seconds:.2f}"),
    StepColumn("busiest", 18, 7, _bound),
    StepColumn("batch wait", 12, 8, lambda line: _wait(line.report.batch_wait.mean)),
    StepColumn("publication", 13, 10, lambda line: f"{line.report.publication:.1%}"),
    StepColumn("oldest", 8, 11, lambda line: _number(_most(line.report), "{:.0f}")),
)
"""All columns, in order."""


def _most(report: StepReport) -> float | None:
    return report.staleness.high if report.staleness.count else None


def _wait(value: float) -> str:
    return f"{value * 1000:.2g} ms" if value < 0.0995 else seconds(value)


class StepTable:
    """Lines with the same columns, each at most `width` characters wide."""

    def __init__(self, *, width: int, total: int, bar: bool) -> None:
        """`total` is the number of steps of the run; with a `bar`, columns that the bar shows are left
        out.
        """
        columns = [column for column in ALL_COLUMNS if not (bar and column.alone)]
        self._widths = {column: column.width for column in columns}
        step = next(column for column in columns if column.name == "step")
        # Two numbers, the slash between them, and two spaces before.
        self._widths[step] = max(step.width, 2 * len(str(total)) + 3)
        while sum(self._widths.values()) >= width and (last := max(columns, key=_rank)).rank:
            columns.remove(last)
            del self._widths[last]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(column.name for column in self._widths)

    def header(self) -> Text:
        return Text("".join(column.name.rjust(width) for column, width in self._widths.items()), style="dim")

    def row(self, line: StepLine) -> Text:
        text = Text()
        for column, width in self._widths.items():
            content = column.cell(line)
            cell = content if isinstance(content, Text) else Text(content)
            text.append(" " * (width - cell.cell_len)).append(cell)
        return text


def _rank(column: StepColumn) -> int:
    return column.rank


PLAIN_WIDTH = 120
"""Characters in a line of a pipe, a log file or a notebook, which have no width of their own."""
ROOMY_WIDTH, WIDE_WIDTH = 100, 150
"""The least width, in characters, for the elapsed time, and for the sentence about the bound."""
CURVE_CHARACTERS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


class TimeLeft(ProgressColumn):
    """The time that the remaining steps will take; it counts down during a step."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        seconds = task.fields["left"]
        if seconds is None:
            return Text("")
        passed_s = (task.get_time() - task.fields["reported"]) if not task.finished else 0.0
        return Text(f"{clock(max(0.0, seconds - passed_s))} left", style="cyan")


class RunDisplay:
    """Prints the progress of a run and its summary.

    In a terminal a bar is below the lines of the steps. In a pipe, a log file or a notebook each line has the
    time of day and the time left.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
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

    def step(self, report: StepReport, state: RunState) -> None:
        """Print one step, which `state` has already."""
        pace = state.pace
        remaining = pace.left(report.total - report.step)
        table = self._lay_out(report.total)
        line = StepLine(
            report=report,
            time_of_day=time.strftime("%H:%M:%S"),
            trend=sign_of(pace.trend, ascii_only=self.console.options.ascii_only),
            elapsed=pace.elapsed,
            left=remaining,
        )
        self._print(table.row(line), soft_wrap=True)
        if self._progress is not None:
            self._progress.update(
                self._task,
                completed=report.step,
                left=remaining,
                reported=self._progress.get_time(),
                curve=_curve(pace.curve(), report, ascii_only=self.console.options.ascii_only),
                bound=Diagnosis.of(report.busiest, report.load, on_cpu=state.on_cpu).sentence("this step"),
            )

    def stop(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def note(self, text: str) -> None:
        """Print a remark above the bar."""
        self._print(text, markup=False)

    def summary(self, state: RunState, run_dir: str) -> None:
        """Print the summary of the run."""
        table, whole = Table(title="Summary", show_header=False, title_justify="left"), state.whole
        rate = f"{whole.env_steps_per_second:.0f}  ({whole.env_steps} in {whole.seconds:.0f} s)"
        table.add_row("fresh env steps/s", rate)
        for name, share in whole.busy.items():
            table.add_row(f"busy {name}", f"{share:.0%}")
        if state.bound is not None:
            table.add_row("bound", state.bound.sentence())
        table.add_row("staleness min/mean/max", _spread(whole.staleness))
        table.add_row("batch size min/mean/max", _spread(whole.batch_size))
        table.add_row("success rate", _success(state))
        table.add_row("trajectories", str(state.ledger))
        if state.faults.kinds:
            table.add_row("outlived", f"{state.faults}  (failures.jsonl)")
        # Brackets in a path would be markup to rich.
        table.add_row("run directory", escape(run_dir))
        table.add_row("look closer", escape(report_command(run_dir)))
        self._print(table)

    def _print(self, *renderables: RenderableType, **options: Any) -> None:
        """Print, until the output is closed, its reader has gone, or its disk is full: this must not end a
        run.
        """
        try:
            self.console.print(*renderables, **options)
        except (OSError, ValueError):
            _silence(self.console)

    @property
    def _has_bar(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def _lay_out(self, total: int) -> StepTable:
        """Return the table for the terminal's present width; print a header if the columns have changed."""
        table = StepTable(width=self.console.width, total=total, bar=self._has_bar)
        if self._table is None or table.names != self._table.names:
            self._print(table.header(), soft_wrap=True)
        self._table = table
        return table


def report_command(run_dir: str | Path) -> str:
    """Return the shell command that makes the report page of a run."""
    return f"rlinf-async report {shlex.quote(str(run_dir))}"


class RunConsole(Console):
    """A console that outlives the reader of its output, as in `train | head`."""

    def on_broken_pipe(self) -> None:
        """Say so by an error; rich would end the process."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _silence(console: Console) -> None:
    """Print nothing more, and drop what has not been written, which would fail when the process exits."""
    console.quiet = True
    with suppress(OSError, ValueError):
        discard(console.file.fileno())


def _console() -> Console:
    console = RunConsole(highlight=False)
    if console.is_terminal:
        return console
    # rich in a notebook would show every line as an output of its own, and need widgets for a bar.
    return RunConsole(highlight=False, width=PLAIN_WIDTH, force_jupyter=False)


def _columns(width: int) -> list[ProgressColumn]:
    """Return the bar's columns: bar, count and time left always, the others as far as they fit."""
    columns: list[ProgressColumn] = [
        BarColumn(20 if width < ROOMY_WIDTH else 40),
        MofNCompleteColumn(),
        TimeLeft(),
    ]
    if width >= ROOMY_WIDTH:
        columns.insert(2, TimeElapsedColumn())
    columns.append(TextColumn("{task.fields[curve]}", markup=False))
    if width >= WIDE_WIDTH:
        column = Column(no_wrap=True, overflow="ellipsis")
        columns.append(TextColumn("[dim]{task.fields[bound]}", table_column=column))
    return columns


def _curve(values: Sequence[float], report: StepReport, *, ascii_only: bool) -> str:
    """Return `success ▁▃▆ 61%`, or the return if there is no success rate; no blocks in ASCII."""
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


def _success(state: RunState) -> str:
    if (means := state.success.means) is None:
        return "not reported by this environment"
    first, last = means
    return f"{first:.0%} -> {last:.0%}  (means of the first and last {state.success.window} steps)"
