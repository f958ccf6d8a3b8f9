"""A bar chart of a bench's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async.extras import pip_install
from rlinf_async.report.palette import GREY, LIGHT_ORANGE, ORANGE

COLOURS = {"stock-": GREY, "full": ORANGE}
OTHERS = LIGHT_ORANGE


def draw(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Fresh throughput of every mode over the best synchronous one, a panel per scenario.

    Raises:
        ValueError: matplotlib is not installed, or nothing was measured.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"the chart needs matplotlib: {pip_install('bench')}") from error
    rows = [row for row in rows if row.get("ratio_stock_sync") is not None]
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    if not scenarios:
        raise ValueError("nothing to draw: no scenario has a synchronous run to compare with")
    rows_of_panels, columns = math.ceil(len(scenarios) / 3), min(3, len(scenarios))
    figure = Figure(figsize=(3.2 * columns, 2.9 * rows_of_panels), layout="constrained")
    panels = figure.subplots(rows_of_panels, columns, squeeze=False)
    for panel, scenario in zip(panels.flat, scenarios, strict=False):
        _panel(panel, scenario, [row for row in rows if row["scenario"] == scenario])
    for panel in panels.flat[len(scenarios) :]:
        panel.set_visible(False)
    figure.supxlabel("fresh environment steps per second, over RLinf's synchronous loop", fontsize=9)
    figure.savefig(path, dpi=150)
    return path


def _panel(panel: Any, scenario: str, rows: Sequence[dict[str, Any]]) -> None:
    names = [row["mode"] for row in rows]
    ratios = [row["ratio_stock_sync"] for row in rows]
    bars = panel.barh(names, ratios, color=[_colour(name) for name in names])
    panel.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize=7)
    panel.axvline(1.0, color="black", linewidth=0.6)
    panel.set_xlim(0, max(ratios) * 1.18)
    panel.invert_yaxis()
    panel.set_title(scenario, fontsize=9)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)


def _colour(mode: str) -> str:
    return next((colour for start, colour in COLOURS.items() if mode.startswith(start)), OTHERS)
