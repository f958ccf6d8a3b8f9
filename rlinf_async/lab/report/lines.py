"""Lines over steps, data or time: the figure of every number that changes as a run goes on."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.axes import Axis, round_axis
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import Point, dot, line, plot
from rlinf_async.lab.report.formatting import number
from rlinf_async.lab.report.run_view import Subject

PLOT_HEIGHT = 240
MOST_POINTS = 300
MOST_DOTS = 60
"""Most points of a figure's lines at which each is a dot that shows its numbers."""
MOST_ROWS = 12
"""Rows of the table for each line, about."""

Form = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points in order of the axis along which they lie."""

    label: str
    colour: str
    points: Sequence[Point]
    dash: str = "solid"
    rings: bool = False
    """True if the points are rings without a line between them."""

    @classmethod
    def of_run(cls, subject: Subject, points: Sequence[Point], *, rings: bool = False) -> Line:
        """In the colour of the run."""
        colour, dash = palette.of_run(subject.index), palette.dash_of_run(subject.index)
        return cls(label=subject.label, colour=colour, dash=dash, points=points, rings=rings)


def points(subject: Subject, name: str, along: str) -> list[Point]:
    """`(sum of along so far, name)` of the steps that have both; `step` is its number."""
    result, total = [], 0.0
    for reported in subject.run.metrics:
        total = reported["step"] if along == "step" else total + reported.get(along, 0.0)
        if name in reported and along in reported:
            result.append((total, reported[name]))
    return thinned(result)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Means of neighbours, where points are many; each at the place of the last of them."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)] if size else []
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


def line_figure(
    title: str,
    lines: Sequence[Line],
    *,
    axis: str,
    form: Form,
    note: str = "",
    low: float | None = None,
    high: float | None = None,
    legend: Legend = (),
) -> Figure:
    """`axis` names what the lines go along; what lies outside of `low` and `high` is drawn at the edge."""
    values = [value for each in lines for _, value in each.points]
    along = [at for each in lines for at, _ in each.points]
    x = round_axis(along, number, low=0.0 if min(along) >= 0 else None, tight=True).named(axis)
    y = round_axis(_inside(values, low, high), form, low=low, high=high)
    dotted = len(values) <= MOST_DOTS
    marks = [mark for each in lines for mark in _marks(each, x, y, dotted, form, axis)]
    return Figure(
        title=title,
        note=note,
        drawing=plot(marks, x, y, height=PLOT_HEIGHT),
        legend=legend,
        table=_table([each for each in lines if not each.rings], axis, form),
    )


def _marks(each: Line, x: Axis, y: Axis, dotted: bool, form: Form, axis: str) -> list[str]:
    marks = [line(each.points, x, y, colour=each.colour, dash=each.dash)] if not each.rings else []
    if dotted or each.rings:
        for point in each.points:
            title = f"{each.label}: {form(point[1])} at {number(point[0])} {axis}"
            marks.append(dot(point, x, y, colour=each.colour, tooltip=title, ring=each.rings))
    return marks


def _inside(values: Sequence[float], low: float | None, high: float | None) -> list[float]:
    """Values without those beyond a limit, which would stretch the axis; the limits if that leaves none."""
    least, most = float("-inf") if low is None else low, float("inf") if high is None else high
    return [value for value in values if least <= value <= most] or [least if low is not None else most]


def _table(lines: Sequence[Line], axis: str, form: Form) -> Table:
    """Some points of each line, evenly chosen, and the last."""
    rows = []
    for each in lines:
        thin = each.points[:: max(1, len(each.points) // MOST_ROWS)]
        points = itertools.chain(thin, each.points[-1:])
        rows += [(each.label, number(at), form(value)) for at, value in points]
    return Table(header=("", axis, "value"), rows=list(dict.fromkeys(rows)))
