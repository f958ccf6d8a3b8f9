"""A chart of a sweep's rows: throughput, and where the seconds of a step go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async.lab.chart import bars, finish, new_figure, save
from rlinf_async.lab.sweep.rows import Row
from rlinf_async.lab.sweep.table import significant

SECONDS_BARS = {
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
    rows = [row for row in rows if row.seeds]
    if not rows:
        raise ValueError("nothing to draw: no run has been measured")
    figure = new_figure(8.0, 1.4 + 0.45 * len(rows))
    throughput, seconds = figure.subplots(1, 2, sharey=True)
    _throughput(throughput, rows)
    _seconds(seconds, rows)
    save(figure, path)
    return path


def _throughput(panel: Any, rows: Sequence[Row]) -> None:
    rates = [rate for row in rows if (rate := row.quantities["env_steps_per_s"]) is not None]
    means = [rate.middle for rate in rates]
    errors = [[rate.middle - rate.low for rate in rates], [rate.high - rate.middle for rate in rates]]
    labels = [_label(row, mean) for row, mean in zip(rows, means, strict=True)]
    bars(panel, [row.name for row in rows], means, labels, xerr=errors, error_kw={"linewidth": 0.8})
    panel.set_xlim(0, max(rate.high for rate in rates) * 1.35)
    finish(panel, "fresh environment steps per second")


def _seconds(panel: Any, rows: Sequence[Row]) -> None:
    height = 0.8 / len(SECONDS_BARS)
    for index, (name, (label, colour)) in enumerate(SECONDS_BARS.items()):
        means = {line: seconds.middle for line, row in enumerate(rows) if (seconds := row.quantities[name])}
        lines = [line + (index - 1) * height for line in means]
        panel.barh(lines, list(means.values()), height=height, color=colour, label=label)
    panel.legend(
        fontsize=7, frameon=False, ncols=len(SECONDS_BARS), loc="upper center", bbox_to_anchor=(0.5, -0.1)
    )
    finish(panel, "seconds of a step")


def _label(row: Row, mean: float) -> str:
    return significant(mean) if row.increase is None else f"{significant(mean)}  ({row.increase:+.0%})"
