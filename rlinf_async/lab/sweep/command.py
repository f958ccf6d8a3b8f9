"""The command `rlinf-async sweep`: run the cells in turn, and update table and report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.status import Status

from rlinf_async.lab.cells import run_in_turn
from rlinf_async.lab.outputs import write_output
from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.plan import Sweep, plan
from rlinf_async.lab.sweep.table import (
    TABLE_CAPTION,
    SettingRow,
    as_csv,
    failures,
    latex,
    markdown,
    outcomes,
    rows,
    screen,
    significant,
)
from rlinf_async.observe.pace import clock
from rlinf_async.observe.reading.run_reader import RunReader


class Watch:
    """A line with the step and the time left of one run, on a terminal only."""

    def __init__(self, cell: SweepCell, *, total: int, console: Console) -> None:
        self._records = RunReader(cell.directory)
        self._total = total
        self._status = Status(f"{cell.name}: starting", console=console) if console.is_terminal else None
        self._name = cell.name

    def __enter__(self) -> Watch:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def look(self) -> None:
        """Read the run's records, and update the line."""
        if self._status is not None and (words := self.words()) is not None:
            self._status.update(words)

    def words(self) -> str | None:
        """Return a line such as `full seed 0: step 5/12, 0:21 left`; None before the first step has ended."""
        state = self._records.state()
        if not (steps := state.whole.steps):
            return None
        remaining = clock(state.pace.left(max(0, self._total - steps)))
        return f"{self._name}: step {steps}/{self._total}, {remaining} left"


__all__ = ["plan", "run"]


def run(sweep: Sweep, console: Console) -> bool:
    """Make the missing runs, and show the results; return True if every run has succeeded.

    Raises:
        ValueError: the directory is not free; or runs are missing, and this machine lacks what they need.
    """
    if sweep.absent and not all(cell.done for cell in sweep.cells):
        raise ValueError("\n".join(sweep.absent))
    with sweep.directory.claimed():
        try:
            _run_missing(sweep, console)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on, {sweep.directory.path} keeps what is done")
            raise
        table = _write(sweep)
        _show(table, sweep, console)
        _write_page(sweep, console)
    return all(cell.done for cell in sweep.cells)


def _run_missing(sweep: Sweep, console: Console) -> None:
    def run_one(cell: SweepCell, title: str) -> str:
        if cell.changed:
            console.print(f"{title}: its overrides or its config have changed, it is run again", markup=False)
        remaining = _left(sweep)
        after = "" if remaining is None else f"; {clock(remaining)} left"
        console.print(f"{title} ... log: {cell.log}{after}", markup=False, soft_wrap=True, style="dim")
        with Watch(cell, total=sweep.steps, console=console) as watch:
            record = cell.run(watch.look)
        _write(sweep)
        if record.error is not None:
            return f"failed: {record.error}"
        return f"{significant(cell.measure().env_steps_per_s)} fresh env steps/s"

    missing = [cell for cell in sweep.cells if not cell.done]
    console.print(
        f"{len(sweep.cells)} runs, one after the other, {len(sweep.cells) - len(missing)} of them are done; "
        f"in {sweep.directory.path}",
        style="dim",
    )
    run_in_turn(missing, run_one, console)


def _left(sweep: Sweep) -> float | None:
    """Return the estimated seconds of the missing runs, from those that are done; None before one is done."""
    records = [cell.record() for cell in sweep.cells]
    took = [record.seconds for record in records if record is not None and record.status == "done"]
    return statistics.fmean(took) * (len(sweep.cells) - len(took)) if took else None


def _write(sweep: Sweep) -> list[SettingRow]:
    """Write and return the table of the runs done so far."""
    table, folder = rows(outcomes(sweep)), sweep.directory
    title = f"{folder.identity['config_name']}, seeds: {sweep.seeds}"
    write_output(folder.path / "table.md", markdown(table, title=title, off=sweep.off, goal=sweep.goal))
    write_output(folder.path / "table.csv", as_csv(table))
    write_output(folder.path / "table.tex", latex(table, goal=sweep.goal))
    return table


def _show(table: Sequence[SettingRow], sweep: Sweep, console: Console) -> None:
    console.print(screen(table, goal=sweep.goal))
    for failure in failures(table):
        console.print(failure, markup=False, soft_wrap=True)
    for paragraph in (*TABLE_CAPTION, sweep.off):
        console.print(paragraph, style="dim", markup=False)


def _write_page(sweep: Sweep, console: Console) -> None:
    """Write the report; a sweep can succeed without it."""
    folder = sweep.directory.path
    names = ["table.md", "table.csv", "table.tex"]
    if directories := [cell.directory for cell in sweep.cells if cell.done]:
        try:
            write_report(directories, folder / "report.html")
            names.append("report.html")
        except ValueError as error:
            console.print(f"no report.html: {error}", markup=False)
    console.print(f"{', '.join(names)} are in {folder}", markup=False, soft_wrap=True)
