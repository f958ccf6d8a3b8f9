"""Figures of numbers that change during a run, as lines over steps, data or time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import Axis, Point, dot, line, plot, round_axis
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import ALL_PARTS

PLOT_HEIGHT = 240
MOST_POINTS = 300
MOST_DOTS = 60
"""Largest number of points in a figure at which every point is a dot with its numbers as a tooltip."""
MOST_ROWS = 12
"""Approximate number of table rows for each line."""

Form = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a figure; its points are in order of the horizontal axis."""

    label: str
    colour: str
    points: Sequence[Point]
    dash: str = "solid"
    rings: bool = False
    """True if the points are rings without a line between them."""

    @classmethod
    def of_run(cls, subject: Subject, points: Sequence[Point], *, rings: bool = False) -> Line:
        """Return a line in the colour of the run."""
        colour, dash = palette.of_run(subject.index), palette.dash_of_run(subject.index)
        return cls(label=subject.label, colour=colour, dash=dash, points=points, rings=rings)


def points(subject: Subject, name: str, along: str) -> list[Point]:
    """Return `(sum of along so far, name)` of the steps with both metrics; `along="step"` is the step's
    number.
    """
    result, total = [], 0.0
    for report in subject.run.metrics:
        total = report["step"] if along == "step" else total + report.get(along, 0.0)
        if name in report and along in report:
            result.append((total, report[name]))
    return thinned(result)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return means of neighbouring points if there are many; each mean has the place of its last point."""
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
    """Return a figure of lines; `axis` names the horizontal axis, and values beyond `low` and `high` are
    drawn at the edge.
    """
    values = [value for each in lines for _, value in each.points]
    along = [at for each in lines for at, _ in each.points]
    x = round_axis(along, number, low=0.0 if min(along) >= 0 else None, tight=True).named(axis)
    y = round_axis(_inside(values, low, high), form, low=low, high=high)
    with_dots = len(values) <= MOST_DOTS
    marks = [mark for each in lines for mark in _marks(each, x, y, with_dots, form, axis)]
    return Figure(
        title=title,
        note=note,
        drawing=plot(marks, x, y, height=PLOT_HEIGHT),
        legend=legend,
        table=_table([each for each in lines if not each.rings], axis, form),
    )


def _marks(each: Line, x: Axis, y: Axis, with_dots: bool, form: Form, axis: str) -> list[str]:
    marks = [line(each.points, x, y, colour=each.colour, dash=each.dash)] if not each.rings else []
    if with_dots or each.rings:
        for point in each.points:
            title = f"{each.label}: {form(point[1])} at {number(point[0])} {axis}"
            marks.append(dot(point, x, y, colour=each.colour, tooltip=title, ring=each.rings))
    return marks


def _inside(values: Sequence[float], low: float | None, high: float | None) -> list[float]:
    """Return the values within the limits, as others would stretch the axis; the limits if none is within."""
    least, most = float("-inf") if low is None else low, float("inf") if high is None else high
    return [value for value in values if least <= value <= most] or [least if low is not None else most]


def _table(lines: Sequence[Line], axis: str, form: Form) -> Table:
    """Return a table of evenly chosen points of each line, and the last."""
    rows = []
    for each in lines:
        thin = each.points[:: max(1, len(each.points) // MOST_ROWS)]
        points = itertools.chain(thin, each.points[-1:])
        rows += [(each.label, number(at), form(value)) for at, value in points]
    return Table(header=("", axis, "value"), rows=list(dict.fromkeys(rows)))


@dataclass(frozen=True, kw_only=True)
class Series:
    """A number of every step, and its format."""

    title: str
    names: tuple[str, ...]
    """The frameworks' names for it, as ends of metrics' names; the first that a run has counts."""
    form: Form = number
    note: str = ""
    low: float | None = None
    high: float | None = None
    zero_is_none: bool = False
    """True if a run with only zeros has not measured the number."""


SPEED_SERIES = (
    Series(
        title="Throughput",
        names=("async/env_steps_per_second",),
        note="Environment steps that were trained for the first time, per second.",
        low=0.0,
    ),
    Series(title="Time of a step", names=("async/step_seconds",), form=duration, low=0.0),
    Series(
        title="Mean staleness",
        names=("async/staleness/mean",),
        note="Policy versions between the oldest action of a trajectory and its training.",
        low=0.0,
    ),
    Series(
        title="Mean batch size",
        names=("async/batch/size/mean",),
        note="Samples in a forward pass of inference.",
        low=0.0,
    ),
    Series(
        title="Wait in the queue",
        names=("async/batch/wait_s/mean",),
        form=duration,
        note="Of the oldest request of a batch, on average.",
        low=0.0,
    ),
    Series(
        title="Publication",
        names=("async/publication_seconds",),
        form=duration,
        note="What handing over new weights has taken of the learner's time.",
        low=0.0,
    ),
)
HEALTH_SIGNS = (
    Series(
        title="Policy loss",
        names=("actor/policy_loss", "actor/pg_loss", "train/loss"),
        note="It moves around a level: its gradient counts, not its value.",
    ),
    Series(
        title="Value loss",
        names=("critic/value_loss", "critic/vf_loss"),
        note="It falls while the critic learns, and rises where returns grow faster than it follows.",
        low=0.0,
    ),
    Series(
        title="Explained variance of the critic",
        names=("critic/explained_variance", "critic/vf_explained_var"),
        note="1 is a perfect critic, 0 one that knows no more than the mean; below -1 is drawn at -1.",
        low=-1.0,
        high=1.0,
    ),
    Series(
        title="Entropy",
        names=("actor/entropy_loss", "actor/entropy"),
        note="How random actions are. Near its least, nothing new is tried.",
        zero_is_none=True,
    ),
    Series(
        title="Approximate KL",
        names=("actor/approx_kl", "actor/ppo_kl", "train/approx_kl"),
        note="How far a batch moves the policy from where its training began.",
    ),
    Series(
        title="Clip fraction",
        names=("actor/clip_fraction", "actor/pg_clipfrac"),
        note="The share of samples whose ratio the clip has cut.",
        form=share,
        low=0.0,
    ),
    Series(
        title="Importance weight",
        names=("actor/behaviour_weight", "train/behaviour_weight"),
        note="Of the policy that training begins with, over the one that acted, on average; 1 where both "
        "are the same.",
    ),
    Series(
        title="KL from the acting policy",
        names=("actor/behaviour_kl",),
        note="How far staleness, and differences of numerics, have taken the learner from what acted.",
    ),
    Series(
        title="Mismatch at the same version",
        names=("mismatch/lag_0/abs_log",),
        note="The mean distance of log-probabilities between learner and inference with the same weights: "
        "rounding, unless kernels or preprocessing differ.",
        low=0.0,
    ),
    Series(
        title="Gradient norm",
        names=("actor/grad_norm", "train/grad_norm"),
        note="Before it is clipped.",
        low=0.0,
    ),
)

TIME_METRICS = (
    ("async/env_steps", "fresh environment steps"),
    ("async/step_seconds", "seconds since the first step began"),
)
OUTCOME_METRICS = (("success_once", "Success rate"), ("return", "Return"))
BUSY_COLOURS = dict(
    zip((part.name for part in ALL_PARTS), (palette.ORANGE, palette.BLUE, palette.VIOLET), strict=True)
)


def speed(subjects: Sequence[Subject]) -> list[Figure]:
    """Return the figures of speed, staleness and load, step by step."""
    figures = [_over_steps(subjects, each) for each in SPEED_SERIES]
    if len(subjects) == 1:
        figures.insert(2, _busy(subjects[0]))
    return [figure for figure in figures if figure is not None]


def health(subjects: Sequence[Subject]) -> list[Figure]:
    """Return the figures of losses, distances between policies, and weights, as the learner measures them."""
    return [figure for each in HEALTH_SIGNS if (figure := _over_steps(subjects, each)) is not None]


def outcomes(subjects: Sequence[Subject]) -> list[Figure]:
    """Return the figures of success and return, over environment steps and over time."""
    figures = [
        _outcome(subjects, name, title, *along) for name, title in OUTCOME_METRICS for along in TIME_METRICS
    ]
    return [figure for figure in figures if figure is not None]


def of_runs(subjects: Sequence[Subject], every: Sequence[Subject]) -> Legend:
    """Return the colours of the shown runs; an empty legend for a page about one run."""
    keys = [(subject.label, palette.of_run(subject.index)) for subject in subjects]
    return [("", keys)] if len(every) > 1 else []


def _over_steps(subjects: Sequence[Subject], series: Series) -> Figure | None:
    """Return a line over the steps for each run that has points; None where no run has two."""
    lines = [(subject, line) for subject in subjects if (line := _points_of_series(subject, series))]
    if not any(len(line) > 1 for _, line in lines):
        return None
    return line_figure(
        series.title,
        [Line.of_run(subject, line) for subject, line in lines],
        note=series.note,
        axis="step",
        form=series.form,
        low=series.low,
        high=series.high,
        legend=of_runs([subject for subject, _ in lines], subjects),
    )


def _points_of_series(subject: Subject, series: Series) -> list[Point]:
    present = dict.fromkeys(name for report in subject.run.metrics for name in report)
    metric = next((name for end in series.names for name in present if f"/{name}".endswith(f"/{end}")), None)
    values = points(subject, metric, "step") if metric is not None else []
    return [] if series.zero_is_none and not any(value for _, value in values) else values


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


def _outcome(subjects: Sequence[Subject], name: str, title: str, along: str, axis: str) -> Figure | None:
    trained = [(subject, points(subject, f"env/{name}", along)) for subject in subjects]
    evaluated = [(subject, points(subject, f"eval/{name}", along)) for subject in subjects]
    lines = [(subject, curve) for subject, curve in trained if curve]
    if not lines:
        return None
    rings = [Line.of_run(subject, curve, rings=True) for subject, curve in evaluated if curve]
    percent = name == "success_once"
    return line_figure(
        f"{title} over {axis.split(' since')[0]}",
        [*(Line.of_run(subject, curve) for subject, curve in lines), *rings],
        note="Circles are evaluations." if rings else "",
        axis=axis,
        form=share if percent else number,
        low=0.0 if percent else None,
        high=1.0 if percent else None,
        legend=of_runs([subject for subject, _ in lines], subjects),
    )
