"""Draw the pictures in `results/`; unchanged data gives unchanged files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from PIL import Image

from benchmarks.learning import cells, data
from benchmarks.learning.cells import Curve
from benchmarks.learning.comparison import MARGIN
from benchmarks.learning.data import (
    HOST_NAMES,
    SUCCESS_LEVEL,
    Results,
    on_press,
)
from benchmarks.learning.peers import LABEL_BY_LOOP, PeerCurve
from benchmarks.learning.statistics import (
    WINDOW_BATCHES,
    area_under_curve,
    delayed,
    final_success,
    median,
    moving_mean,
)

# Okabe and Ito's palette, safe for colour-blind readers.
BLUE_COLOR, ORANGE_COLOR, GREEN_COLOR, GREY_COLOR = "#0072B2", "#D55E00", "#009E73", "#666666"
LABEL_AND_COLOR_BY_MODE = {"off": ("synchronous", BLUE_COLOR), "full": ("full", ORANGE_COLOR)}
LINE_STYLE_BY_HOST = {"local": "-", "rlinf": (0, (4, 1.5))}
STYLE_BY_CORRECTION = {"none": (ORANGE_COLOR, "s"), "decoupled": (BLUE_COLOR, "o"), "tis": (GREEN_COLOR, "^")}
SECONDS_LABEL = "seconds of training"
COLOR_BY_LOOP = {
    "synchronous": GREY_COLOR,
    "async-ppo": BLUE_COLOR,
    "lean": GREEN_COLOR,
    "lag0": BLUE_COLOR,
    "asynchronous": ORANGE_COLOR,
}

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
)


def equivalence(results: Results) -> Path | None:
    """Draw success over env steps, a panel for each setting; seeds are thin, means thick."""
    drawn: set[tuple[str, str]] = set()
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex=True, sharey=True, layout="constrained")
    for panel, (task, algorithm) in zip(axes.flat, data.TASKS_AND_ALGORITHMS, strict=True):
        counts: dict[str, list[int]] = {}
        for host in LINE_STYLE_BY_HOST:
            for label in LABEL_AND_COLOR_BY_MODE:
                curves = results.curves(host=host, task=task, algorithm=algorithm, label=label)
                counts.setdefault(host, []).append(len(curves))
                if curves:
                    _curves(
                        panel,
                        list(curves.values()),
                        LABEL_AND_COLOR_BY_MODE[label][1],
                        LINE_STYLE_BY_HOST[host],
                    )
                    drawn.add((host, label))
        seeds = ", ".join(
            f"{HOST_NAMES[host]} {'/'.join(map(str, some))}" for host, some in counts.items() if any(some)
        )
        panel.set_title(f"{task}, {algorithm.upper()}\nseeds (sync/full): {seeds or 'none yet'}")
        panel.axhline(SUCCESS_LEVEL, color=GREY_COLOR, lw=0.8, ls=":")
        panel.set_ylim(0, 1.02)
    for panel in axes[-1]:
        panel.set_xlabel("env steps (simulator steps trained)")
        panel.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:.0f}k")
    for panel in axes[:, 0]:
        panel.set_ylabel(f"success rate (mean of {WINDOW_BATCHES} batches)")
    if drawn:
        handles = [
            Line2D(
                [],
                [],
                color=LABEL_AND_COLOR_BY_MODE[label][1],
                ls=LINE_STYLE_BY_HOST[host],
                lw=2.2,
                label=f"{LABEL_AND_COLOR_BY_MODE[label][0]}, {HOST_NAMES[host]}",
            )
            for host in LINE_STYLE_BY_HOST
            for label in LABEL_AND_COLOR_BY_MODE
            if (host, label) in drawn
        ]
        axes.flat[0].legend(handles=handles, loc="lower right")
    figure.suptitle("Synchronous training and full asynchrony: thin lines are seeds, thick lines means")
    return _save(figure, "equivalence.png", bool(drawn))


def _curves(panel: Axes, curves: list[Curve], color: str, style: object) -> None:
    smooth = [moving_mean(curve.success) for curve in curves]
    for curve, line in zip(curves, smooth, strict=True):
        panel.plot(curve.env_steps, line, color=color, ls=style, lw=0.7, alpha=0.35)
    panel.plot(curves[0].env_steps, np.mean(smooth, axis=0), color=color, ls=style, lw=2.2)


def staleness(results: Results) -> Path | None:
    """Draw AUC and final success over lag, with a line for each correction and a point for each seed."""
    measures: dict[str, Callable[[Curve], float]] = {
        "AUC (success averaged over env steps)": area_under_curve,
        f"final success rate (last {WINDOW_BATCHES} batches)": final_success,
    }
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    drawn = False
    for panel, (name, measure) in zip(axes, measures.items(), strict=True):
        for place, (correction, (color, marker)) in enumerate(STYLE_BY_CORRECTION.items()):
            means = {}
            for lag in data.STALENESS_LAGS:
                curves = on_press(results, f"lag{lag}-{correction}" if lag else "off").values()
                values = [measure(curve) for curve in curves]
                if values:
                    # Side by side, so that no correction hides another.
                    position = lag + (place - 1) * 0.16 if lag else 0
                    means[position] = np.mean(values)
                    own = color if lag else GREY_COLOR
                    panel.plot([position] * len(values), values, marker, color=own, ms=3.5, alpha=0.45, mew=0)
            panel.plot(
                list(means), list(means.values()), color=color, marker=marker, ms=6, lw=1.8, label=correction
            )
            drawn = drawn or bool(means)
        late = [
            np.mean([measure(delayed(curve, lag)) for curve in on_press(results, "off").values()] or [np.nan])
            for lag in data.STALENESS_LAGS
        ]
        panel.plot(data.STALENESS_LAGS, late, color=GREY_COLOR, ls=":", lw=1.5, label="no loss but delay")
        panel.set_xticks(data.STALENESS_LAGS)
        panel.set_xlabel("lag (policy versions)")
        panel.set_ylabel(name)
        panel.set_ylim(0, 1.02)
    axes[0].legend(title="correction", loc="lower left")
    figure.suptitle(
        f"Learning with a fixed lag ({data.PRESS_TASK}, PPO): lines are means, small points are seeds"
    )
    return _save(figure, "staleness.png", drawn)


@dataclass(frozen=True)
class Theme:
    """The colours of a page that a picture stands on."""

    suffix: str
    """The end of the file's name, before `.png`."""
    ground: str
    ink: str
    color_by_loop: Mapping[str, str]

    @property
    def style(self) -> Any:
        """The settings of matplotlib, by their names."""
        grounds = {f"{part}.facecolor": self.ground for part in ("figure", "axes", "savefig")}
        inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        return {**grounds, **dict.fromkeys(inks, self.ink)}


THEMES = (
    Theme("", "#ffffff", "#1f2328", COLOR_BY_LOOP),
    Theme(
        "-dark",
        "#0d1117",
        "#e6edf3",
        {
            "synchronous": "#a5a5a5",
            "async-ppo": "#56B4E9",
            "lean": "#2fcf9f",
            "lag0": "#56B4E9",
            "asynchronous": "#ff8a3d",
        },
    ),
)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A panel: when levels of success were reached, by loop and seed."""

    curves: Mapping[str, Mapping[int, PeerCurve]]
    """`seconds` of a curve are of the panel's own unit."""
    label: str
    """The label of the axis."""
    most: float
    """The end of the axis."""
    unit: str = "s"


def success_over(panels: Sequence[Reached], level: float, *, name: str) -> list[Path]:
    """Draw when levels of success were reached, a panel beside the other, on light and on dark ground.

    A thin line is a seed: at each level the seconds after which `PeerCurve.seconds_to` finds it. The thick
    line is their median, so that it crosses `level` at the median that tables and captions name. A seed that
    never gets to a level counts as later than all others.
    """
    levels = np.arange(0.0, 1.0001, 1 / 256)
    drawn = [
        {
            loop: [[curve.seconds_to(each) for each in levels] for curve in by_seed.values()]
            for loop, by_seed in panel.curves.items()
        }
        for panel in panels
    ]
    pictures = (_success_over(panels, drawn, levels, level, name, theme) for theme in THEMES)
    return [path for path in pictures if path]


def _success_over(
    panels: Sequence[Reached],
    drawn: Sequence[Mapping[str, Sequence[Sequence[float | None]]]],
    levels: np.ndarray,
    level: float,
    file: str,
    theme: Theme,
) -> Path | None:
    with plt.rc_context(theme.style):
        width = 7.6 if len(panels) == 1 else 5.2 * len(panels)
        figure, axes = plt.subplots(
            1, len(panels), figsize=(width, 3.6), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, panel, reached in zip(axes[0], panels, drawn, strict=True):
            _draw_levels(axis, panel, reached, levels, level, theme)
        axes[0][0].set_ylabel(f"success ({WINDOW_BATCHES} batches in a row)")
    return _save(figure, f"{Path(file).stem}{theme.suffix}.png", any(drawn))


def _draw_levels(
    axis: Axes,
    panel: Reached,
    reached: Mapping[str, Sequence[Sequence[float | None]]],
    levels: np.ndarray,
    level: float,
    theme: Theme,
) -> None:
    axis.axhline(level, color=theme.ink, lw=0.8, ls=":")
    for loop, of_seeds in reached.items():
        color = theme.color_by_loop[loop]
        for values in of_seeds:
            axis.plot(*_reached(values, levels), color=color, lw=0.7, alpha=0.35)
        middle = [median([values[place] for values in of_seeds]) for place in range(len(levels))]
        at = middle[_place(levels, level)]
        name = LABEL_BY_LOOP[loop].replace("`", "")
        words = name if at is None else f"{name}: {at:,.0f} {panel.unit} to {level:.0%}"
        axis.plot(*_reached(middle, levels), color=color, lw=2.4, label=words)
        if at is not None:
            axis.plot([at], [level], "o", color=color, ms=6)
    axis.set(xlabel=panel.label, xlim=(0, panel.most), ylim=(0.4, 1.0))
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if reached:
        axis.legend(loc="lower right")


def _place(levels: np.ndarray, level: float) -> int:
    """The place of the lowest of `levels` that is not below `level`."""
    return int(np.searchsorted(levels, level - 1e-9))


def _reached(seconds: Sequence[float | None], levels: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the seconds and the levels of those that were reached."""
    pairs = [(at, level) for at, level in zip(seconds, levels, strict=True) if at is not None]
    return [at for at, _ in pairs], [level for _, level in pairs]


WIDEST_DIFFERENCE = 40.0
"""Intervals beyond so many per cent are cut off at the edge of the picture."""


def forest(rows: Sequence[Mapping[str, Any]]) -> Path | None:
    """Draw all rows of evidence.json: differences in learning, with intervals, ordered by group."""
    count = len(rows) + len({row["group"] for row in rows})
    figure, panel = plt.subplots(figsize=(9, 1 + 0.19 * count), layout="constrained")
    panel.axvspan(-100 * MARGIN, 100 * MARGIN, color=GREY_COLOR, alpha=0.15, lw=0)
    panel.axvline(0, color=GREY_COLOR, lw=0.8)
    ticks: list[tuple[int, str]] = []
    for row, before in zip(rows, [None, *rows], strict=False):
        if before is None or row["group"] != before["group"]:
            ticks.append((-len(ticks), row["group"].replace("`", "")))
            panel.text(-WIDEST_DIFFERENCE, ticks[-1][0], ticks[-1][1], fontsize=8, weight="bold", va="center")
        place = -len(ticks)
        ticks.append((place, f"{row['setting'].replace('`', '')} ({row['seeds']})"))
        for prefix, color, up in (("", BLUE_COLOR, 0.12), ("moved_", ORANGE_COLOR, -0.2)):
            low, middle, high = (100 * row[f"{prefix}{key}"] for key in ("ci_low", "difference", "ci_high"))
            width = 2.0 if not prefix else 1.0
            panel.plot([low, high], [place + up] * 2, color=color, lw=width)
            panel.plot([middle], [place + up], "o", color=color, ms=2 * width)
    named = [tick for tick in ticks if tick[1] not in {row["group"].replace("`", "") for row in rows}]
    panel.set_yticks([place for place, _ in named], [name for _, name in named], fontsize=8)
    panel.set(
        xlabel="`full` minus synchronous, % of what the synchronous runs learned, 95 %".replace("`", ""),
        xlim=(-WIDEST_DIFFERENCE, WIDEST_DIFFERENCE),
        ylim=(-len(ticks), 1),
    )
    handles = [
        Line2D([], [], color=BLUE_COLOR, lw=2, marker="o", label="against the synchronous curve itself"),
        Line2D(
            [], [], color=ORANGE_COLOR, lw=1, marker="o", ms=3, label="against that curve, moved by the lag"
        ),
    ]
    if rows:
        panel.legend(handles=handles, loc="upper right")
    return _save(figure, "forest.png", bool(rows))


PLOT_BY_NAME: dict[str, Callable[[Results], Path | None]] = {
    "equivalence": equivalence,
    "staleness": staleness,
}


def _save(figure: Figure, name: str, drawn: bool) -> Path | None:
    """Write the figure, and return its path; if nothing was `drawn`, remove the file and return None."""
    path = cells.RESULTS_FOLDER / name
    path.unlink(missing_ok=True)
    if drawn:
        drawing = BytesIO()
        # The file depends on the data alone, not on the version of matplotlib.
        figure.savefig(drawing, dpi=110, metadata={"Software": None})
        # A palette makes the file a third of the size; MAXCOVERAGE keeps rare colours.
        picture = Image.open(drawing).convert("RGB")
        small = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
    plt.close(figure)
    return path if drawn else None
