"""Marks and axes as HTML and SVG without scripts; text stays text, in the text colour of the page.

All texts are escaped here; colours and numbers come from this package alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

TICK_COUNT = 5
"""The intended number of ticks."""
RELATIVE_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, two different numbers."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    """Values with a line across the plot, and their labels."""
    captions: Sequence[tuple[float, str]] = ()
    """Further texts; their places are shares of the axis, 0 to 1."""
    log: bool = False

    def place(self, value: float) -> float:
        """Return the share of the axis below `value`; a value beyond an end is placed at that end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low)

    def named(self, name: str) -> Axis:
        """Return this axis with `name` as a caption in the middle."""
        return replace(self, captions=[(0.5, name)])


def round_axis(
    values: Iterable[float],
    form: Callable[[float], str],
    *,
    low: float | None = None,
    high: float | None = None,
    tight: bool = False,
) -> Axis:
    """Return an axis with round numbers around the non-empty `values`.

    Args:
        form: formats a number.
        low: begin of the axis; by default the least value.
        high: end of the axis; by default the largest value.
        tight: end the axis at the values instead of at round numbers.
    """
    some = list(values)
    first = min(some) if low is None else low
    last = max(some) if high is None else high
    if last - first <= RELATIVE_SLACK * max(abs(first), abs(last), 1e-6):
        margin = abs(last) / 10 or 1.0
        first, last = first - (margin if low is None else 0.0), last + margin
    step = _step((last - first) / TICK_COUNT)
    if not tight:
        first = first if low is not None else math.floor(first / step + RELATIVE_SLACK) * step
        last = last if high is not None else math.ceil(last / step - RELATIVE_SLACK) * step
    count = range(math.ceil(first / step - RELATIVE_SLACK), math.floor(last / step + RELATIVE_SLACK) + 1)
    digits = 3 - math.floor(math.log10(step))
    places = [round(step * each, digits) for each in count]
    return Axis(low=first, high=last, ticks=[(place, form(place)) for place in places])


def log_axis(low: float, high: float, form: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis with decades, and with ticks between few decades; `0 < low < high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 30 else (1, 2, 5)
    places = [step * 10.0**decade for decade in decades for step in steps]
    within = [place for place in places if low * (1 - RELATIVE_SLACK) <= place <= high * (1 + RELATIVE_SLACK)]
    return Axis(low=low, high=high, ticks=[(place, form(place)) for place in within], log=True)


def categories(names: Sequence[str], *, most: int = 12) -> Axis:
    """Return an axis with one unit for each name, from 0 on; of many names, about `most` are written."""
    every = -(-len(names) // most)
    ticks = [(at + 0.5, name) for at, name in enumerate(names) if at % every == 0]
    return Axis(low=0.0, high=float(max(1, len(names))), ticks=ticks)


def _step(raw: float) -> float:
    """Return the round number (1, 2 or 5 times a power of ten) that is next to `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= raw * (1 - RELATIVE_SLACK))


DRAWING_UNITS = 1000
"""Units of a drawing in each direction; the page stretches the drawing, but not its lines and dots."""
DASH_PATTERNS = {
    "solid": "",
    "dash": "7 4",
    "dot": "2 4",
    "dashdot": "7 3 2 3",
    "longdash": "12 5",
    "longdashdot": "12 4 2 4",
}

Point = tuple[float, float]


def line(points: Sequence[Point], x: Axis, y: Axis, *, colour: str, dash: str = "solid") -> str:
    """Return a line through points."""
    dashes = f' stroke-dasharray="{DASH_PATTERNS[dash]}"' if DASH_PATTERNS[dash] else ""
    return f'<path class="line" d="{_way(points, x, y)}" stroke="{colour}"{dashes}/>'


def area(points: Sequence[Point], x: Axis, y: Axis, *, colour: str) -> str:
    """Return the faint area between a line and the lower end of the plot."""
    first = _unit(x.place(points[0][0]))
    return f'<path d="{_way(points, x, y)}V{DRAWING_UNITS}H{first}Z" fill="{colour}" opacity=".16"/>'


def dot(point: Point, x: Axis, y: Axis, *, colour: str, tooltip: str, ring: bool = False) -> str:
    """Return a dot or a ring with a tooltip."""
    at = f"M{_unit(x.place(point[0]))} {_unit(1 - y.place(point[1]))}h0"
    kind = "ring" if ring else "dot"
    hole = f'<path class="hole" d="{at}"/>' if ring else ""
    return f'<g class="{kind}"><title>{escape(tooltip)}</title><path d="{at}" stroke="{colour}"/>{hole}</g>'


def column(
    start: float, right: float, low: float, high: float, x: Axis, y: Axis, *, fill: str, tooltip: str
) -> str:
    """Return a vertical bar between places of both axes."""
    x0, x1, y0, y1 = x.place(start), x.place(right), y.place(low), y.place(high)
    box = f'x="{_unit(x0)}" y="{_unit(1 - y1)}" width="{_unit(x1 - x0)}" height="{_unit(y1 - y0)}"'
    return f'<rect {box} fill="{fill}"><title>{escape(tooltip)}</title></rect>'


def plot(marks: Iterable[str], x: Axis, y: Axis, *, height: int) -> str:
    """Return a plot of marks between two axes; `height` in pixels."""
    across = "".join(f"M0 {_unit(1 - y.place(value))}H{DRAWING_UNITS}" for value, _ in y.ticks)
    below = _labels("x", [(x.place(value), text) for value, text in x.ticks])
    beside = _labels("y", [(1 - y.place(value), text) for value, text in y.ticks], side="top")
    captions = _labels("c", x.captions)
    return (
        f'<div class="plot" style="height:{height}px">{_svg(f"""<path class="grid" d="{across}"/>""", marks)}'
        f"{beside}{below}{captions}</div>"
    )


def rows(names: Sequence[str], content: str, x: Axis, *, row: int, zooms: bool = False) -> str:
    """Return rows of `row` pixels with their names at the left; `content` fills the place at their right.

    With `zooms`, the reader can make that place wider than the page.
    """
    labels = "".join(f"<li>{escape(name)}</li>" for name in names)
    axis = _labels("x", [(x.place(value), text) for value, text in x.ticks])
    grid = "".join(f'<b style="left:{100 * x.place(value):.6g}%"></b>' for value, _ in x.ticks)
    wider = '<label class="zoom"><input type="checkbox"> 8 times as wide</label>' if zooms else ""
    size = f"--row:{row}px;--rows:{len(names)}"
    canvas = f'<div class="canvas"><div class="lines">{grid}</div>{content}{axis}</div>'
    pane = f'<div class="pane" tabindex="0">{canvas}</div>'
    return f'<div class="rows" style="{size}">{wider}<ul class="names">{labels}</ul>{pane}</div>'


def stacked(parts: Iterable[tuple[float, str, str, str, str]]) -> str:
    """Return a row of parts side by side; each is (share of the width, fill, text colour, text, tooltip)."""
    return "".join(
        f'<i style="width:{100 * share:.6g}%;background:{fill};color:{ink}" title="{escape(tooltip)}">'
        f"{escape(text)}</i>"
        for share, fill, ink, text, tooltip in parts
    )


def _svg(behind: str, marks: Iterable[str]) -> str:
    box = f'viewBox="0 0 {DRAWING_UNITS} {DRAWING_UNITS}" preserveAspectRatio="none"'
    return f'<svg {box} aria-hidden="true">{behind}{"".join(marks)}</svg>'


def _labels(kind: str, places: Iterable[tuple[float, str]], *, side: str = "left") -> str:
    each = (f'<li style="{side}:{100 * place:.6g}%">{escape(text)}</li>' for place, text in places)
    return f'<ul class="{kind}">{"".join(each)}</ul>'


def _way(points: Sequence[Point], x: Axis, y: Axis) -> str:
    places = (f"{_unit(x.place(at))} {_unit(1 - y.place(value))}" for at, value in points)
    return "M" + "L".join(places)


def _unit(share: float) -> str:
    """Return a share in units of the drawing, with a decimal if it is not whole."""
    return f"{share * DRAWING_UNITS:.1f}".removesuffix(".0")
