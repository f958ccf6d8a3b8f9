"""Draw the pictures in `results/`; unchanged data gives unchanged files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from PIL import Image

from benchmarks.learning import cells, data
from benchmarks.learning.cells import Curve
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
    moving_mean,
)

# Okabe and Ito's palette, safe for colour-blind readers.
BLUE_COLOR, ORANGE_COLOR, GREEN_COLOR, GREY_COLOR = "#0072B2", "#D55E00", "#009E73", "#666666"
LABEL_AND_COLOR_BY_MODE = {"off": ("synchronous", BLUE_COLOR), "full": ("full", ORANGE_COLOR)}
LINE_STYLE_BY_HOST = {"local": "-", "rlinf": (0, (4, 1.5))}
STYLE_BY_CORRECTION = {"none": (ORANGE_COLOR, "s"), "decoupled": (BLUE_COLOR, "o"), "tis": (GREEN_COLOR, "^")}
COLOR_BY_LOOP = {"synchronous": GREY_COLOR, "async-ppo": BLUE_COLOR, "asynchronous": ORANGE_COLOR}

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


def success_over_seconds(
    curves: Mapping[str, Mapping[int, PeerCurve]], level: float, *, seconds: float, name: str
) -> Path | None:
    """Draw success over the first `seconds` of training, for RLinf's loops and `full`, into the file `name`.

    Seeds are thin, their means thick; a mean ends where the shortest of its seeds ends.
    """
    figure, panel = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    for label, by_seed in curves.items():
        color = COLOR_BY_LOOP[label]
        lines = [_fresh_line(curve) for curve in by_seed.values()]
        for line in lines:
            panel.plot(*line, color=color, lw=0.7, alpha=0.35)
        grid = np.linspace(max(line[0][0] for line in lines), min(line[0][-1] for line in lines), 200)
        mean = np.mean([np.interp(grid, *line) for line in lines], axis=0)
        panel.plot(grid, mean, color=color, lw=2.4, label=LABEL_BY_LOOP[label].replace("`", ""))
    panel.axhline(level, color=GREY_COLOR, lw=0.8, ls=":")
    panel.set(xlabel="seconds of training", xlim=(0, seconds), ylim=(0.3, 1.02))
    panel.set_ylabel(f"success rate (mean of {WINDOW_BATCHES} batches)")
    if curves:
        panel.legend(loc="lower right")
    return _save(figure, name, bool(curves))


def forest(rows: Sequence[Mapping[str, Any]]) -> Path | None:
    """Draw differences of the area above the start, a line for each row with a claim, ordered by group.

    `rows` are those of gains.json, and others of the same form.
    """
    shown = sorted((row for row in rows if row["claim"]), key=lambda row: str(row["group"]))
    figure, panel = plt.subplots(figsize=(8, 0.6 + 0.27 * len(shown)), layout="constrained")
    for margin in {100 * row["margin"] for row in shown}:
        panel.axvspan(-margin, margin, color=GREY_COLOR, alpha=0.15, lw=0)
    panel.axvline(0, color=GREY_COLOR, lw=0.8)
    for place, row in enumerate(reversed(shown)):
        for prefix, color in (("", BLUE_COLOR), ("beyond_delay_", ORANGE_COLOR)):
            low, middle, high = (100 * row[f"{prefix}{key}"] for key in ("ci_low", "difference", "ci_high"))
            at = place + (0.15 if not prefix else -0.15)
            panel.plot([low, high], [at, at], color=color, lw=1.8)
            panel.plot([middle], [at], "o", color=color, ms=4)
    panel.set_yticks(range(len(shown)), [row["setting"] for row in reversed(shown)], fontsize=8)
    panel.set(xlabel="asynchronous minus synchronous, % of what the synchronous runs learned")
    handles = [
        Line2D([], [], color=BLUE_COLOR, marker="o", label="in all"),
        Line2D([], [], color=ORANGE_COLOR, marker="o", label="beyond the delay of the lag"),
    ]
    if shown:
        panel.legend(handles=handles, loc="upper left")
    return _save(figure, "forest.png", bool(shown))


def _fresh_line(curve: PeerCurve) -> tuple[list[float], list[float]]:
    """Return the seconds and the moving mean of success of the fresh batches."""
    at = [number for number, fresh in enumerate(curve.fresh) if fresh]
    return [curve.seconds[number] for number in at], list(
        moving_mean([curve.success[number] for number in at])
    )


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
