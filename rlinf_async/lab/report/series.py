"""Speed, staleness and load as the run goes on, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.charts import over_steps
from rlinf_async.lab.report.content import Figure
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.lines import Form, Line, line_figure, points
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import ALL_PARTS

BUSY_COLOURS = dict(
    zip((part.name for part in ALL_PARTS), (palette.ORANGE, palette.BLUE, palette.VIOLET), strict=True)
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A number of every step, and how it is written."""

    title: str
    metric: str
    form: Form
    note: str = ""


ALL_SERIES = (
    Series(
        title="Throughput",
        metric="async/env_steps_per_second",
        form=number,
        note="Environment steps that were trained for the first time, per second.",
    ),
    Series(title="Time of a step", metric="async/step_seconds", form=duration),
    Series(
        title="Mean staleness",
        metric="async/staleness/mean",
        form=number,
        note="Policy versions between the oldest action of a trajectory and its training.",
    ),
    Series(
        title="Mean batch size",
        metric="async/batch/size/mean",
        form=number,
        note="Samples in a forward pass of inference.",
    ),
    Series(
        title="Wait in the queue",
        metric="async/batch/wait_s/mean",
        form=duration,
        note="Of the oldest request of a batch, on average.",
    ),
    Series(
        title="Publication",
        metric="async/publication_seconds",
        form=duration,
        note="What handing over new weights has taken of the learner's time.",
    ),
)
"""All series begin at 0."""


def series(subjects: Sequence[Subject]) -> list[Figure]:
    """Return the figures of the series that a run has, over steps."""
    figures = [_figure(subjects, each) for each in ALL_SERIES]
    if len(subjects) == 1:
        figures.insert(2, _busy(subjects[0]))
    return [figure for figure in figures if figure is not None]


def _figure(subjects: Sequence[Subject], each: Series) -> Figure | None:
    series = [(subject, points(subject, each.metric, "step")) for subject in subjects]
    return over_steps(each.title, series, note=each.note, form=each.form, low=0.0)


def _busy(subject: Subject) -> Figure | None:
    lines = [
        Line(label=name, colour=colour, points=values)
        for name, colour in BUSY_COLOURS.items()
        if len(values := points(subject, f"async/busiest/{name}", "step")) > 1
    ]
    if not lines:
        return None
    return line_figure(
        "Busy shares",
        lines,
        note="Of the busiest shard, inference rank and learner rank.",
        axis="step",
        form=share,
        low=0.0,
        high=1.0,
        legend=[("", [(each.label, each.colour) for each in lines])],
    )
