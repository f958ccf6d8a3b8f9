"""What a run shows in a terminal: a line per step, a progress bar, and a summary."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from rlinf_async.core.diagnosis import Diagnosis
from rlinf_async.core.summary import RunSummary
from rlinf_async.core.tracing import Spread, StepReport

COLUMNS = (
    ("step", 9),
    ("return", 8),
    ("success", 8),
    ("env steps/s", 12),
    ("busy env/inf/learn", 19),
    ("staleness", 10),
    ("batch", 7),
    ("seconds", 8),
)


class RunDisplay:
    """Prints the progress of a run and sums it up; works in a terminal, a pipe and a log file."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[bound]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            transient=True,
        )

    def start(self, title: str, *, step: int, total: int) -> None:
        """Print the header; the bar begins at `step`."""
        self.console.print(f"[bold]{title}[/bold]")
        self.console.print("".join(name.rjust(width) for name, width in COLUMNS), style="dim")
        self._task = self._progress.add_task("steps", total=total, completed=step, bound="")
        self._progress.start()

    def step(self, report: StepReport) -> None:
        """Print one step."""
        busy = "/".join(f"{report.busy[name].mean:.0%}" for name in ("env", "inference", "learner"))
        cells = (
            f"{report.step}/{report.total}",
            _number(report.episode_return, "{:.2f}"),
            _number(report.success, "{:.0%}"),
            f"{report.env_steps_per_second:.0f}",
            busy,
            f"{report.staleness.mean:.2f}",
            f"{report.batch_size.mean:.1f}",
            f"{report.seconds:.2f}",
        )
        row = "".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
        self.console.print(row)
        bound = Diagnosis.of(report.busiest).sentence("this step")
        self._progress.update(self._task, completed=report.step, bound=bound)

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def note(self, text: str) -> None:
        self.console.print(text)

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
        table.add_row("run directory", escape(run_dir))
        self.console.print(table)


def _console() -> Console:
    console = Console(highlight=False)
    # A pipe or a log file has no width of its own.
    return console if console.is_terminal else Console(highlight=False, width=120)


def _spread(spread: Spread) -> str:
    return f"{spread.low:g} / {spread.mean:.2f} / {spread.high:g}" if spread.count else "-"


def _success(summary: RunSummary) -> str:
    if summary.success is None:
        return "not reported by this environment"
    first, last = summary.success
    return f"{first:.0%} -> {last:.0%}  (means of the first and last {summary.window} steps)"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
