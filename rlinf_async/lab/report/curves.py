"""Success and return as the run goes on."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async.lab.report.charts import of_runs
from rlinf_async.lab.report.content import Figure
from rlinf_async.lab.report.formatting import number, share
from rlinf_async.lab.report.lines import Line, line_figure, points
from rlinf_async.lab.report.run_view import Subject

TIME_METRICS = (
    ("async/env_steps", "fresh environment steps"),
    ("async/step_seconds", "seconds since the first step began"),
)
OUTCOME_METRICS = (("success_once", "Success rate"), ("return", "Return"))


def curves(subjects: Sequence[Subject]) -> list[Figure]:
    """Return the figures of success and return, over environment steps and over time."""
    figures = [
        _figure(subjects, name, title, *along) for name, title in OUTCOME_METRICS for along in TIME_METRICS
    ]
    return [figure for figure in figures if figure is not None]


def _figure(subjects: Sequence[Subject], name: str, title: str, along: str, axis: str) -> Figure | None:
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
