"""A bar chart of a bench's rows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.chart import bars, finish, new_figure, save


def draw(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Fresh throughput of every mode over the best synchronous one, a panel per scenario.

    Args:
        rows: of one host.

    Raises:
        ValueError: matplotlib is not installed, or nothing was measured.
    """
    rows = [row for row in rows if row.get("ratio_stock_sync") is not None]
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    if not scenarios:
        raise ValueError("nothing to draw: no scenario has a synchronous run to compare with")
    lines, columns = math.ceil(len(scenarios) / 3), min(3, len(scenarios))
    figure = new_figure(3.2 * columns, 2.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False)
    for panel, scenario in zip(panels.flat, scenarios, strict=False):
        _panel(panel, scenario, [row for row in rows if row["scenario"] == scenario])
    for panel in panels.flat[len(scenarios) :]:
        panel.set_visible(False)
    over = SIDES_BY_HOST[rows[0]["host"]].over
    label = f"fresh environment steps per second, over {over}"
    figure.supxlabel(textwrap.fill(label, width=40 * columns), fontsize=9)
    save(figure, path)
    return path


def _panel(panel: Any, scenario: str, rows: Sequence[dict[str, Any]]) -> None:
    ratios = [row["ratio_stock_sync"] for row in rows]
    bars(panel, [row["mode"] for row in rows], ratios, [f"{ratio:.2f}" for ratio in ratios])
    panel.axvline(1.0, color="black", linewidth=0.6)
    panel.set_xlim(0, max(ratios) * 1.18)
    finish(panel, scenario)
