"""The common parts of the bar charts of all experiments."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from rlinf_async.extras import pip_install
from rlinf_async.lab.outputs import write_output
from rlinf_async.lab.report.palette import GREY, LIGHT_ORANGE, ORANGE


def new_figure(width: float, height: float) -> Any:
    """A figure of matplotlib's, in inches.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"the chart needs matplotlib: {pip_install('bench')}") from error
    return Figure(figsize=(width, height), layout="constrained")


def bars(
    panel: Any, names: Sequence[str], values: Sequence[float], labels: Sequence[str], **style: Any
) -> None:
    """A bar for each mode, from the top down."""
    places = range(len(names))
    container = panel.barh(places, values, color=[_colour(name) for name in names], **style)
    panel.bar_label(container, labels, padding=3, fontsize=7)
    panel.set_yticks(places, names)
    panel.invert_yaxis()


def finish(panel: Any, title: str) -> None:
    """The title, and no frame."""
    panel.set_title(title, fontsize=9)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format that the end of the name says, PNG where it says none.

    Raises:
        ValueError: there is no such format, or the file cannot be written.
    """
    picture = BytesIO()
    figure.savefig(picture, dpi=150, format=path.suffix.removeprefix(".") or "png")
    write_output(path, picture.getvalue())


def _colour(mode: str) -> str:
    """RLinf's own modes are grey, all levels together are dark."""
    if mode == "off" or mode.startswith("stock-"):
        return GREY
    return ORANGE if mode.startswith("full") else LIGHT_ORANGE
