"""Figures of the values that a sweep varies: lines along one key, a map of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.content import Figure, Section, Table
from rlinf_async.lab.report.drawing import heat
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.lines import Line, line_figure
from rlinf_async.lab.sweep.settings import short
from rlinf_async.lab.sweep.table import Row
from rlinf_async.lab.table import Range

SHOWN_QUANTITIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "env_steps_per_s": ("Fresh environment steps per second", number),
    "success": ("Success rate at the end", share),
    "seconds_to_goal": ("Seconds to the success rate asked for", duration),
}
"""Quantities, their names, and the way in which they are written."""


def axes_section(rows: Sequence[Row]) -> Section | None:
    """A section for the first one or two keys that are varied; None if none is, or nothing was measured."""
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    if not keys or not any(row.seeds for row in rows):
        return None
    draw = _lines if len(keys) == 1 else _maps
    figures = [figure for name in SHOWN_QUANTITIES for figure in draw(rows, keys, name)]
    more = f" Of {', '.join(keys[2:])} the means are shown." if len(keys) > 2 else ""
    return Section(
        id="axes",
        nav="Sweep",
        title=f"What {' and '.join(keys[:2])} change" if len(keys) > 1 else f"What {keys[0]} changes",
        sentence=f"Means over seeds, of every setting of the levels.{more}",
        figures=figures,
    )


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Over rows; of a goal that not every seed has reached there is none."""
    ranges: list[Range | None] = [row.quantities[name] for row in rows]
    middles = [one.middle for one, row in zip(ranges, rows, strict=True) if one and one.runs == row.seeds]
    return sum(middles) / len(middles) if middles and len(middles) == len(rows) else None


def _settings(rows: Sequence[Row], key: str) -> list[str]:
    """Return the settings whose levels know the key."""
    return list(dict.fromkeys(row.setting for row in rows if key in row.values))


def _lines(rows: Sequence[Row], keys: Sequence[str], name: str) -> list[Figure]:
    """A line for each setting of the levels; a flat, dashed one for a setting that does not know the key."""
    (key,), (title, form) = keys, SHOWN_QUANTITIES[name]
    values = list(dict.fromkeys(row.values[key] for row in rows if key in row.values))
    places = _places(values)
    lines = []
    for index, setting in enumerate(dict.fromkeys(row.setting for row in rows)):
        of_setting = [row for row in rows if row.setting == setting]
        points = [
            (places[value], mean)
            for value in values
            if (mean := _mean([row for row in of_setting if row.values.get(key, value) == value], name))
            is not None
        ]
        if points:
            dash = "solid" if setting in _settings(rows, key) else "dash"
            colour = palette.of_run(index)
            lines.append(Line(label=setting, colour=colour, points=sorted(points), dash=dash))
    if not lines:
        return []
    words = "" if _numeric(values) else f"; {', '.join(f'{at:g} is {value}' for value, at in places.items())}"
    keys_of_lines = [("", [(line.label, line.colour) for line in lines])]
    figure = line_figure(title, lines, axis=f"{short(key)}{words}", form=form, low=0.0, legend=keys_of_lines)
    return [figure]


def _maps(rows: Sequence[Row], keys: Sequence[str], name: str) -> list[Figure]:
    """A map for each setting of the levels that knows both keys."""
    (down, across), (title, form) = keys[:2], SHOWN_QUANTITIES[name]
    maps = []
    for setting in [one for one in _settings(rows, down) if one in _settings(rows, across)]:
        of_setting = [row for row in rows if row.setting == setting]
        ups, alongs = (list(dict.fromkeys(row.values[key] for row in of_setting)) for key in (down, across))
        cells = {
            (up, along): _mean(
                [row for row in of_setting if (row.values[down], row.values[across]) == (up, along)], name
            )
            for up in ups
            for along in alongs
        }
        if all(value is None for value in cells.values()):
            continue
        texts = [
            ["-" if (value := cells[up, along]) is None else form(value) for along in alongs] for up in ups
        ]
        maps.append(
            Figure(
                title=f"{title}: {setting}",
                note=f"Rows are {short(down)}, columns are {short(across)}; the darker, the larger.",
                drawing=heat(
                    ups,
                    alongs,
                    [[cells[up, along] for along in alongs] for up in ups],
                    texts,
                ),
                table=Table(
                    header=(short(down), *(f"{short(across)}={along}" for along in alongs)),
                    rows=[(up, *line) for up, line in zip(ups, texts, strict=True)],
                ),
            )
        )
    return maps


def _numeric(values: Sequence[str]) -> bool:
    try:
        return all(float(value) == float(value) for value in values)
    except ValueError:
        return False


def _places(values: Sequence[str]) -> dict[str, float]:
    """Numbers where they are, words one after the other."""
    if _numeric(values):
        return {value: float(value) for value in values}
    return {value: float(place) for place, value in enumerate(values, start=1)}
