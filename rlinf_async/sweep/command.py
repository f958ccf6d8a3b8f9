"""What `rlinf-async sweep` does: run the cells in turn, and keep table, chart and report up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from rlinf_async.sweep.cell import Cell
from rlinf_async.sweep.chart import draw
from rlinf_async.sweep.plan import Sweep, plan
from rlinf_async.sweep.rows import Row, results, rows
from rlinf_async.sweep.table import CAPTION, as_csv, failures, markdown, number, screen

__all__ = ["plan", "run"]


def run(sweep: Sweep, console: Console) -> bool:
    """Run what is not done yet, and show what came out; whether every run succeeded.

    Raises:
        ValueError: the directory is not free.
    """
    with sweep.home.claimed():
        try:
            _run_missing(sweep, console)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on, {sweep.home.path} keeps what is done")
            raise
        found = _write(sweep)
        _show(found, console)
        _write_pictures(sweep, found, console)
    return all(cell.done for cell in sweep.cells)


def _run_missing(sweep: Sweep, console: Console) -> None:
    todo = [cell for cell in sweep.cells if not cell.done]
    console.print(
        f"{len(sweep.cells)} runs, one after the other, {len(sweep.cells) - len(todo)} of them are done; in "
        f"{sweep.home.path}",
        style="dim",
    )
    for place, cell in enumerate(todo, start=1):
        _run(cell, f"[{place}/{len(todo)}] {cell.name}", console)
        _write(sweep)


def _run(cell: Cell, title: str, console: Console) -> None:
    if cell.changed:
        console.print(f"{title}: its overrides or its config have changed, it is run again", markup=False)
    console.print(f"{title} ... log: {cell.log}", markup=False, soft_wrap=True, style="dim")
    record = cell.run()
    if record.error is not None:
        said = f"failed: {record.error}"
    else:
        said = f"{number(cell.measure().env_steps_per_s)} fresh env steps/s"
    console.print(f"{title}: {said} ({record.seconds:.0f} s)", markup=False, soft_wrap=True)


def _write(sweep: Sweep) -> list[Row]:
    """The table of what is done by now."""
    found = rows(results(sweep))
    title = f"{sweep.home.identity['config_name']}, seeds: {sweep.seeds}"
    (sweep.home.path / "table.md").write_text(markdown(found, title=title))
    (sweep.home.path / "table.csv").write_text(as_csv(found))
    return found


def _show(found: list[Row], console: Console) -> None:
    console.print(screen(found))
    for failure in failures(found):
        console.print(failure, markup=False, soft_wrap=True)
    for paragraph in CAPTION:
        console.print(paragraph, style="dim", markup=False)


def _write_pictures(sweep: Sweep, found: list[Row], console: Console) -> None:
    """The chart and the report; without them a sweep has still succeeded."""
    done = [cell.directory for cell in sweep.cells if cell.done]
    makers: dict[str, Callable[[Path], object]] = {"chart.png": partial(draw, found)}
    if done:
        makers["report.html"] = partial(_write_report, done)
    names = ["table.md", "table.csv"]
    for name, make in makers.items():
        try:
            make(sweep.home.path / name)
            names.append(name)
        except ValueError as error:
            console.print(f"no {name}: {error}", markup=False)
    console.print(f"{', '.join(names)} are in {sweep.home.path}", markup=False, soft_wrap=True)


def _write_report(runs: Sequence[Path], out: Path) -> Path:
    from rlinf_async.report.page import write_report

    return write_report(runs, out)
