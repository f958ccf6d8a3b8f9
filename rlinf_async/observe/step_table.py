"""The table that a run prints while it goes on: a line for each step, of the columns that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from rlinf_async.observe.activity import seconds
from rlinf_async.observe.diagnosis import Diagnosis
from rlinf_async.observe.meters import StepReport
from rlinf_async.observe.pace import clock

BUSY_PARTS = ("env", "inference", "learner")
TREND_ARROWS = {1: "\u2191", 0: " ", -1: "\u2193"}
TREND_SIGNS = {1: "+", 0: " ", -1: "-"}
"""Signs for a terminal or a file that can show nothing but ASCII."""
TREND_STYLES = {1: "green", 0: "", -1: "red"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A step and what was around it; times in seconds."""

    report: StepReport
    time_of_day: str
    trend: Text
    """A sign of `sign_of`."""
    elapsed: float
    left: float | None


@dataclass(frozen=True)
class Column:
    """One column: its name, its width with the space before it, and what it says of a step.

    Of those that do not fit into the width, the ones with the highest `rank` are left out.
    """

    name: str
    width: int
    rank: int
    cell: Callable[[Line], str | Text]
    alone: bool = False
    """True for columns that are shown without a progress bar, which has the same."""


def sign_of(trend: int, *, ascii_only: bool) -> Text:
    """The sign of a `Pace.trend`."""
    return Text((TREND_SIGNS if ascii_only else TREND_ARROWS)[trend], style=TREND_STYLES[trend])


def _busy(line: Line) -> Text:
    """The mean shares, the largest in bold."""
    shares = [line.report.busy[name].mean for name in BUSY_PARTS]
    most, text = max(shares), Text()
    for index, share in enumerate(shares):
        text.append("/" if index else "").append(f"{share:.0%}", "bold" if share == most > 0 else "")
    return text


def _rate(line: Line) -> str:
    return f"{line.report.env_steps_per_second:.0f}"


def _bound(line: Line) -> str:
    diagnosis = Diagnosis.of(line.report.busiest)
    return f"{diagnosis.part} {diagnosis.share:.0%}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


ALL_COLUMNS: Sequence[Column] = (
    Column("time", 8, 0, lambda line: line.time_of_day, alone=True),
    Column("step", 8, 0, lambda line: f"{line.report.step}/{line.report.total}"),
    Column("left", 10, 0, lambda line: clock(line.left), alone=True),
    Column("elapsed", 10, 9, lambda line: clock(line.elapsed)),
    Column("return", 8, 4, lambda line: _number(line.report.episode_return, "{:.2f}")),
    Column("success", 8, 3, lambda line: _number(line.report.success, "{:.0%}")),
    Column("env steps/s", 12, 1, _rate),
    Column("", 2, 1, lambda line: line.trend),
    Column("busy env/inf/learn", 19, 2, _busy),
    Column("stale", 6, 5, lambda line: f"{line.report.staleness.mean:.2f}"),
    Column("batch", 7, 6, lambda line: f"{line.report.batch_size.mean:.1f}"),
    Column("seconds", 9, 1, lambda line: f"{line.report.seconds:.2f}"),
    Column("busiest", 18, 7, _bound),
    Column("batch wait", 12, 8, lambda line: _wait(line.report.batch_wait.mean)),
    Column("publication", 13, 10, lambda line: f"{line.report.publication:.1%}"),
    Column("oldest", 8, 11, lambda line: _number(_most(line.report), "{:.0f}")),
)
"""All columns, in order; the time left and the time of day come with the bar, or where there is none."""


def _most(report: StepReport) -> float | None:
    return report.staleness.high if report.staleness.count else None


def _wait(value: float) -> str:
    return f"{value * 1000:.2g} ms" if value < 0.0995 else seconds(value)


class StepTable:
    """Lines of equal columns, none of them wider than `width`."""

    def __init__(self, *, width: int, total: int, bar: bool) -> None:
        """`total` steps are to come; with a `bar` next to it, columns that the bar shows are left out."""
        columns = [column for column in ALL_COLUMNS if not (bar and column.alone)]
        self._widths = {column: column.width for column in columns}
        step = next(column for column in columns if column.name == "step")
        self._widths[step] = max(step.width, 2 * len(str(total)) + 3)
        while sum(self._widths.values()) >= width and (last := max(columns, key=_rank)).rank:
            columns.remove(last)
            del self._widths[last]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns, in order."""
        return tuple(column.name for column in self._widths)

    def header(self) -> Text:
        return Text("".join(column.name.rjust(width) for column, width in self._widths.items()), style="dim")

    def row(self, line: Line) -> Text:
        text = Text()
        for column, width in self._widths.items():
            content = column.cell(line)
            cell = content if isinstance(content, Text) else Text(content)
            text.append(" " * (width - cell.cell_len)).append(cell)
        return text


def _rank(column: Column) -> int:
    return column.rank
