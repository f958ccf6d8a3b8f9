"""Bars: what each process spends its time on, how old trajectories were, what was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf_async.report import palette
from rlinf_async.report.content import Figure, Legend, Table
from rlinf_async.report.intervals import Interval
from rlinf_async.report.lanes import PARTS, REST, Lane, Part, extremes, mean_shares, of_part
from rlinf_async.report.staleness import Staleness
from rlinf_async.report.subject import Subject
from rlinf_async.report.words import share

MOST_ROWS = 12
"""Shards or ranks of one kind that are shown one by one."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
CLEAR = "rgba(0,0,0,0)"
GRID = "rgba(128,140,152,0.25)"


def of_runs(subjects: Sequence[Subject]) -> Legend:
    """Which colour is which run; nothing where there is one."""
    keys = [(subject.label, palette.of_run(subject.index)) for subject in subjects]
    return [("", keys)] if len(keys) > 1 else []


def figure_json(traces: Sequence[Mapping[str, Any]], *, height: int, **layout: Any) -> str:
    """A Plotly figure that takes its paper, and by the page's style sheet its ink, from the page."""
    from plotly import graph_objects

    axis = {"automargin": True, "fixedrange": True, "zeroline": False, "gridcolor": GRID, "linecolor": GRID}
    axes = {name: {**axis, **layout.pop(name, {})} for name in ("xaxis", "yaxis")}
    figure = graph_objects.Figure(
        data=list(traces),
        layout={
            "template": graph_objects.layout.Template(),
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"family": FONT, "size": 12},
            "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
            "height": height,
            "showlegend": False,
            "dragmode": False,
            "hoverlabel": {"bgcolor": "#22282f", "bordercolor": "#22282f", "font": {"color": "#f5f6f7"}},
            **axes,
            **layout,
        },
    )
    return str(figure.to_json())


def shares(subject: Subject, window: Interval) -> Figure:
    """Of every shard and rank, or of the extremes where they are many."""
    rows = [row for part in PARTS for row in _rows(of_part(subject.lanes, part), window)]
    words = sorted(dict.fromkeys(word for part in PARTS for word in part.words), key=REST.__eq__)
    present = [word for word in words if any(found.get(word, 0.0) > 0 for _, _, found in rows)]
    labels = [label for label, _, _ in rows]
    traces = [_bars(word, labels, [found.get(word, 0.0) for _, _, found in rows]) for word in present]
    height = 42 + 26 * len(rows)
    return Figure(
        title=subject.label,
        json=figure_json(
            traces,
            height=height,
            barmode="stack",
            bargap=0.25,
            margin={"l": 8, "r": 24, "t": 8, "b": 8},
            xaxis={"range": [0, 1], "tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1]},
            yaxis={"autorange": "reversed", "showgrid": False, "ticks": ""},
        ),
        height=height,
        table=Table(
            header=("", *present),
            rows=[
                (label, *(share(found[word]) if word in part.words else "" for word in present))
                for label, part, found in rows
            ],
        ),
        wide=True,
    )


def legend(subjects: Sequence[Subject], window: Callable[[Subject], Interval | None]) -> Legend:
    """What the colours of the parts mean, as far as they are seen in the windows of the runs."""
    groups = []
    for part in PARTS:
        lanes = [(lane, at) for s in subjects if (at := window(s)) for lane in of_part(s.lanes, part)]
        seen = {word for lane, at in lanes for word, share in lane.shares(at).items() if share > 0}
        keys = [(word, palette.OF_WORDS[word]) for word in part.words if word in seen and word != REST]
        groups.append((f"{part.lane}s", keys))
    return [(name, keys) for name, keys in groups if keys]


def _rows(lanes: Sequence[Lane], window: Interval) -> list[tuple[str, Part, Mapping[str, float]]]:
    if len(lanes) <= MOST_ROWS:
        return [(lane.name, lane.part, lane.shares(window)) for lane in lanes]
    part = lanes[0].part
    some = [(f"{word}: {lane.name}", part, lane.shares(window)) for word, lane in extremes(lanes, window)]
    return [*some, (f"mean of {len(lanes)} {part.lane}s", part, mean_shares(lanes, window))]


def _bars(word: str, labels: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    colour = palette.OF_WORDS[word]
    readable = colour != palette.FAINT
    return {
        "type": "bar",
        "orientation": "h",
        "name": word,
        "y": labels,
        "x": [round(value, 5) for value in values],
        "marker": {"color": colour, "line": {"width": 0}},
        "text": [f"{value:.0%}" if readable and value >= 0.07 else "" for value in values],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": palette.on(colour), "size": 11},
        "hovertemplate": f"%{{y}}<br>{word} %{{x:.1%}}<extra></extra>",
    }


AGES = (("fresh", palette.LIGHT_ORANGE), ("in flight", palette.ORANGE), ("in queue", palette.GREY))


def staleness(found: Sequence[tuple[Subject, Staleness]]) -> Figure:
    """How many versions old the trajectories of one or of several runs were, and where they aged."""
    rows = [(subject.label, row[0], row[1:]) for subject, ages in found for row in ages.histogram()]
    versions: Any = [str(row[1]) for row in rows]
    if len(found) > 1:
        versions = [[row[0] for row in rows], versions]
    traces = [
        {
            "type": "bar",
            "name": word,
            "x": versions,
            "y": [round(row[2][index], 5) for row in rows],
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertemplate": f"{word}: %{{y:.1%}} of the trajectories<extra></extra>",
        }
        for index, (word, colour) in enumerate(AGES)
    ]
    return Figure(
        title="Staleness of trained trajectories",
        note=". ".join(
            f"{_named(subject, found)} {ages.mean_in_flight:.2f} versions passed in flight on average "
            f"and {ages.mean_in_queue:.2f} in the queue"
            for subject, ages in found
        )
        + ".",
        json=figure_json(
            traces,
            height=260,
            barmode="stack",
            bargap=0.4,
            xaxis={"type": "multicategory" if len(found) > 1 else "category", "title": {"text": "versions"}},
            yaxis={"tickformat": ".0%", "rangemode": "tozero"},
        ),
        height=260,
        legend=[("", AGES)],
        table=Table(
            header=("versions old", *(word for word, _ in AGES)),
            rows=[
                (f"{row[0]}: {row[1]}" if len(found) > 1 else str(row[1]), *(share(each) for each in row[2]))
                for row in rows
            ],
        ),
    )


def _named(subject: Subject, found: Sequence[Any]) -> str:
    return f"In {subject.label}" if len(found) > 1 else "Of the staleness,"


def refusals(found: Sequence[tuple[Subject, Mapping[str, int]]]) -> Figure:
    """Trajectories that were refused, by reason."""
    reasons = sorted({reason for _, counts in found for reason in counts})
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": subject.label,
            "y": reasons,
            "x": [counts.get(reason, 0) for reason in reasons],
            "marker": {"color": palette.of_run(subject.index)},
            "hovertemplate": "%{y}: %{x}<extra></extra>",
        }
        for subject, counts in found
    ]
    height = 80 + 30 * len(reasons) * len(found)
    return Figure(
        title="Refused trajectories by reason",
        json=figure_json(
            traces,
            height=height,
            xaxis={"rangemode": "tozero"},
            yaxis={"showgrid": False, "autorange": "reversed"},
        ),
        height=height,
        legend=of_runs([subject for subject, _ in found]),
        table=Table(
            header=("reason", *(subject.label for subject, _ in found)),
            rows=[(reason, *(str(counts.get(reason, 0)) for _, counts in found)) for reason in reasons],
        ),
    )
