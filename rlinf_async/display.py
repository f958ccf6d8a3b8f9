"""What a run shows in a terminal: a line per step, a progress bar, and a summary."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from rlinf_async.core.buffer import Ledger
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
            console=self.console,
            transient=True,
        )
        self._reports: list[StepReport] = []

    def start(self, title: str, *, step: int, total: int) -> None:
        """Print the header; the bar begins at `step`."""
        self.console.print(f"[bold]{title}[/bold]")
        self.console.print("".join(name.rjust(width) for name, width in COLUMNS), style="dim")
        self._task = self._progress.add_task("steps", total=total, completed=step)
        self._progress.start()

    def step(self, report: StepReport) -> None:
        """Print one step."""
        self._reports.append(report)
        busy = "/".join(f"{report.busy.get(name, 0.0):.0%}" for name in ("env", "inference", "learner"))
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
        self._progress.update(self._task, completed=report.step)

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def note(self, text: str) -> None:
        self.console.print(text)

    def summary(self, ledger: Ledger, run_dir: str) -> None:
        """Print what the run did, over all its steps."""
        if not self._reports:
            return
        seconds = sum(report.seconds for report in self._reports)
        table = Table(title="Summary", show_header=False, title_justify="left")
        fresh = sum(report.env_steps for report in self._reports)
        table.add_row("fresh env steps/s", f"{fresh / seconds:.0f}  ({fresh} in {seconds:.0f} s)")
        for name in ("env", "inference", "learner"):
            share = sum(report.busy.get(name, 0.0) * report.seconds for report in self._reports) / seconds
            table.add_row(f"busy {name}", f"{share:.0%}")
        table.add_row("staleness min/mean/max", _spread([report.staleness for report in self._reports]))
        table.add_row("batch size min/mean/max", _spread([report.batch_size for report in self._reports]))
        table.add_row("success rate", self._success())
        table.add_row("trajectories", str(ledger))
        table.add_row("run directory", run_dir)
        self.console.print(table)

    def _success(self) -> str:
        seen = [report.success for report in self._reports if report.success is not None]
        if not seen:
            return "not reported by this environment"
        window = min(4, len(seen))
        first, last = sum(seen[:window]) / window, sum(seen[-window:]) / window
        return f"{first:.0%} -> {last:.0%}  (means of the first and last {window} steps)"


def _console() -> Console:
    console = Console(highlight=False)
    # A pipe or a log file has no width of its own.
    return console if console.is_terminal else Console(highlight=False, width=120)


def _spread(spreads: list[Spread]) -> str:
    merged = Spread()
    for spread in spreads:
        merged.merge(spread)
    return f"{merged.low:g} / {merged.mean:.2f} / {merged.high:g}" if merged.count else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
