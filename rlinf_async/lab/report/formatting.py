"""Formats of numbers on the page."""

from __future__ import annotations

from datetime import UTC, datetime

from rlinf_async.observe.pace import seconds as long

NO_VALUE = "-"


def number(value: float | None) -> str:
    """Format a number with three significant digits, and without an exponent below a million."""
    if value is None:
        return NO_VALUE
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def share(value: float | None) -> str:
    """Format a share in per cent; small ones have a decimal."""
    if value is None:
        return NO_VALUE
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def duration(value: float | None) -> str:
    """Format seconds, such as `0.12 ms`, `35 ms`, `1.4 s`, `12 min`."""
    if value is None:
        return NO_VALUE
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms" if value >= 1e-3 else f"{value * 1000:.2g} ms"
    return f"{value:g} s" if value < 60 and value == int(value) else long(value)


def ends(pair: tuple[float, float] | None, *, percent: bool) -> str:
    """Format two values, such as `12% to 95%`."""
    if pair is None:
        return NO_VALUE
    form = share if percent else number
    return f"{form(pair[0])} to {form(pair[1])}"


def ratio(value: float | None, first: float | None) -> str:
    return NO_VALUE if value is None or not first else f"{value / first:.2f}x"


def moment(value: object) -> str:
    """Format a time of the wall clock."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NO_VALUE
    try:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return NO_VALUE
