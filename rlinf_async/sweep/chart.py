"""A chart of a sweep's rows: throughput, and where the seconds of a step go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async.extras import pip_install
from rlinf_async.report.palette import GREY, LIGHT_ORANGE, ORANGE
from rlinf_async.sweep.rows import Row
from rlinf_async.sweep.table import number

OFF, OTHERS, FULL = GREY, LIGHT_ORANGE, ORANGE
SECONDS = {
    "step_s": ("step", "#4d4d4d"),
    "rollout_s": ("rollout", "#56b4e9"),
    "learner_s": ("learner", "#e69f00"),
}
"""Quantities of the second panel; colours of Okabe and Ito, which differ to every eye and in grey."""


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Throughput of every setting with its range over seeds, and the seconds of its steps.

    Raises:
        ValueError: matplotlib is not installed, or nothing was measured.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"the chart needs matplotlib: {pip_install('bench')}") from error
    rows = [row for row in rows if row.seeds]
    if not rows:
        raise ValueError("nothing to draw: no run has been measured")
    figure = Figure(figsize=(8.0, 1.4 + 0.45 * len(rows)), layout="constrained")
    throughput, seconds = figure.subplots(1, 2, sharey=True)
    _throughput(throughput, rows)
    _seconds(seconds, rows)
    figure.savefig(path, dpi=150)
    return path


def _throughput(panel: Any, rows: Sequence[Row]) -> None:
    ranges = [one for row in rows if (one := row.quantities["env_steps_per_s"]) is not None]
    means = [one.mean for one in ranges]
    around = [[one.mean - one.low for one in ranges], [one.high - one.mean for one in ranges]]
    colours = [{"off": OFF, "full": FULL}.get(row.setting, OTHERS) for row in rows]
    bars = panel.barh(range(len(rows)), means, color=colours, xerr=around, error_kw={"linewidth": 0.8})
    panel.bar_label(
        bars, [_label(row, mean) for row, mean in zip(rows, means, strict=True)], padding=4, fontsize=7
    )
    panel.set_xlim(0, max(one.high for one in ranges) * 1.35)
    panel.set_yticks(range(len(rows)), [row.setting for row in rows])
    panel.invert_yaxis()
    _finish(panel, "fresh environment steps per second")


def _seconds(panel: Any, rows: Sequence[Row]) -> None:
    height = 0.8 / len(SECONDS)
    for index, (name, (label, colour)) in enumerate(SECONDS.items()):
        there = [(place, found.mean) for place, row in enumerate(rows) if (found := row.quantities[name])]
        places = [place + (index - 1) * height for place, _ in there]
        panel.barh(places, [mean for _, mean in there], height=height, color=colour, label=label)
    panel.legend(
        fontsize=7, frameon=False, ncols=len(SECONDS), loc="upper center", bbox_to_anchor=(0.5, -0.1)
    )
    _finish(panel, "seconds of a step")


def _finish(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=9)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)


def _label(row: Row, mean: float) -> str:
    return number(mean) if row.increase is None else f"{number(mean)}  ({row.increase:+.0%})"
