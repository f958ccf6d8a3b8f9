"""Success and return as the run goes on."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.report import palette
from rlinf_async.report.charts import figure_json, of_runs
from rlinf_async.report.content import Figure, Table
from rlinf_async.report.subject import Subject
from rlinf_async.report.words import number, share

HEIGHT = 260
MOST_POINTS = 1000
AXES = (
    ("async/env_steps", "fresh environment steps"),
    ("async/step_seconds", "seconds since the first step began"),
)
MEASURED = (("success_once", "Success rate"), ("return", "Return"))

Point = tuple[float, float]


def curves(subjects: Sequence[Subject]) -> list[Figure]:
    """What there is of success and return, over environment steps and over time."""
    figures = []
    for name, title in MEASURED:
        form = share if name == "success_once" else number
        for along, axis in AXES:
            figure = _figure(subjects, name, f"{title} over {axis.split(' since')[0]}", along, axis, form)
            if figure is not None:
                figures.append(figure)
    return figures


def points(subject: Subject, name: str, along: str) -> list[Point]:
    """`(sum of along so far, name)` of the steps that have both; means of neighbours if they are many."""
    found, total = [], 0.0
    for line in subject.run.metrics:
        total += line.get(along, 0.0)
        if name in line and along in line:
            found.append((total, line[name]))
    size = -(-len(found) // MOST_POINTS)
    groups = [found[at : at + size] for at in range(0, len(found), size)] if size else []
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


def _figure(
    subjects: Sequence[Subject], name: str, title: str, along: str, axis: str, form: Callable[[float], str]
) -> Figure | None:
    trained = [(subject, points(subject, f"env/{name}", along)) for subject in subjects]
    evaluated = [(subject, points(subject, f"eval/{name}", along)) for subject in subjects]
    known = [(subject, found) for subject, found in trained if found]
    if not known:
        return None
    marks = [(subject, found) for subject, found in evaluated if found]
    traces = [_line(subject, found) for subject, found in known] + [_marks(*each) for each in marks]
    percent = form is share
    return Figure(
        title=title,
        note="Circles are evaluations." if marks else "",
        json=figure_json(
            traces,
            height=HEIGHT,
            xaxis={"title": {"text": axis}, "rangemode": "tozero"},
            yaxis={"tickformat": ".0%", "range": [-0.03, 1.03]} if percent else {},
        ),
        height=HEIGHT,
        legend=of_runs([subject for subject, _ in known]),
        table=_table(known, axis, form),
    )


def _line(subject: Subject, found: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(found) <= 40 else "lines",
        "name": subject.label,
        "x": [round(at, 3) for at, _ in found],
        "y": [round(value, 5) for _, value in found],
        "line": {
            "color": palette.of_run(subject.index),
            "dash": palette.dash_of_run(subject.index),
            "width": 2,
        },
        "marker": {"size": 5},
    }


def _marks(subject: Subject, found: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{subject.label}, evaluation",
        "x": [round(at, 3) for at, _ in found],
        "y": [round(value, 5) for _, value in found],
        "marker": {"color": palette.of_run(subject.index), "symbol": "circle-open", "size": 10},
    }


def _table(
    known: Sequence[tuple[Subject, Sequence[Point]]], axis: str, form: Callable[[float], str]
) -> Table:
    """At most a dozen points of each, evenly chosen."""
    rows = []
    for subject, found in known:
        kept = found[:: max(1, len(found) // 12)]
        rows += [(subject.label, number(at), form(value)) for at, value in itertools.chain(kept, found[-1:])]
    return Table(header=("run", axis, "value"), rows=list(dict.fromkeys(rows)))
