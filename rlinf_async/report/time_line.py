"""What every shard and rank did in one step, as bars along its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async.core.spans import Span
from rlinf_async.core.status import WORDS
from rlinf_async.report import charts, palette
from rlinf_async.report.charts import figure_json
from rlinf_async.report.content import Figure, Legend, Table
from rlinf_async.report.intervals import Interval, intersection, union
from rlinf_async.report.lanes import PARTS, Lane, extremes, of_part
from rlinf_async.report.steps import Step
from rlinf_async.report.subject import Subject
from rlinf_async.report.words import duration, share

MOST_LANES = 24
INVISIBLE = 1 / 4000
"""Of the width: shorter bars are no pixel wide."""
DRIVER = {"evaluate": "evaluating", "save": "saving a checkpoint"}
"""What stops the learner between two steps."""
ORDER = (
    "gate",
    "ask",
    "idle",
    "fetch",
    "load",
    "offload",
    "put",
    "copy",
    "reset",
    "step",
    "forward",
    "accept",
    "finish",
)
"""Waits first, for what is drawn later covers it: a fetch goes on while earlier pieces are trained."""


def time_line(subject: Subject, step: Step, *, most_bars: int) -> Figure:
    """One step; the shortest bars are left out where there are more than `most_bars`."""
    chosen = chosen_lanes(subject.lanes, step.window)
    rows = [name for name, _ in chosen]
    bars = [
        bar
        for row, (_, lane) in enumerate(chosen)
        for bar in _bars(row, lane.within(step.window), step.window)
    ]
    if paused := _bars(len(rows), _driver(subject, step.window), step.window):
        rows, bars = [*rows, "driver"], [*bars, *paused]
    visible = [bar for bar in bars if bar[2] >= INVISIBLE * step.seconds]
    shown = sorted(visible, key=lambda bar: bar[2], reverse=True)[:most_bars]
    kinds = [kind for kind in (*ORDER, *DRIVER) if any(bar[3] == kind for bar in shown)]
    height = 70 + 20 * len(rows)
    return Figure(
        title=f"{subject.label}, step {step.number}: {duration(step.seconds)}",
        note=f"The {cut} shortest bars are left out." if (cut := len(visible) - len(shown)) else "",
        json=figure_json(
            [_trace(kind, [bar for bar in shown if bar[3] == kind]) for kind in kinds],
            height=height,
            barmode="overlay",
            bargap=0.2,
            dragmode="zoom",
            hovermode="closest",
            xaxis={"range": [0, step.seconds], "ticksuffix": " s", "fixedrange": False},
            yaxis={
                "range": [len(rows) - 0.5, -0.5],
                "tickvals": list(range(len(rows))),
                "ticktext": rows,
                "showgrid": False,
            },
        ),
        height=height,
        table=_table(chosen, step.window),
        wide=True,
    )


def chosen_lanes(lanes: Sequence[Lane], window: Interval) -> list[tuple[str, Lane]]:
    """All lanes, or of the kinds that are many the busiest, the median and the idlest of this time."""
    groups = [of_part(lanes, part) for part in PARTS]
    chosen = []
    for group in groups:
        if len(lanes) > MOST_LANES and len(group) > 3 and len(group) > MOST_LANES / len(PARTS):
            chosen += [(f"{word}: {lane.name}", lane) for word, lane in extremes(group, window)]
        else:
            chosen += [(lane.name, lane) for lane in group]
    return chosen


Bar = tuple[int, float, float, str, str]
"""Row, seconds since the step began, seconds, kind of span, and what to say about it."""


def _bars(row: int, spans: Sequence[Span], window: Interval) -> list[Bar]:
    bars = []
    for span in spans:
        if span["kind"] not in palette.OF_KINDS:
            continue
        for began, ended in intersection(union([window]), union([(span["began"], span["ended"])])):
            said = f"{_word(span['kind'])}<br>{duration(span['ended'] - span['began'])}{_facts(span)}"
            bars.append((row, began - window[0], ended - began, str(span["kind"]), said))
    return bars


def _trace(kind: str, bars: Sequence[Bar]) -> Mapping[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": _word(kind),
        "y": [row for row, _, _, _, _ in bars],
        "base": [round(began, 4) for _, began, _, _, _ in bars],
        "x": [round(seconds, 4) for _, _, seconds, _, _ in bars],
        "customdata": [said for _, _, _, _, said in bars],
        "marker": {"color": palette.OF_KINDS[kind], "line": {"width": 0}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _word(kind: str) -> str:
    return DRIVER.get(kind) or WORDS[kind]


def _facts(span: Span) -> str:
    said = [
        f"{name} {span[name]}" for name in ("batch", "version", "size") if isinstance(span.get(name), int)
    ]
    said += [f"{len(span[name])} {name}" for name in ("shards", "pieces") if isinstance(span.get(name), list)]
    return f"<br>{', '.join(said)}" if said else ""


def remark(subject: Subject, step: Step) -> str:
    """Which lanes are shown, where not all are."""
    chosen = chosen_lanes(subject.lanes, step.window)
    if len(chosen) == len(subject.lanes):
        return ""
    return (
        f"Of the {len(subject.lanes)} shards and ranks of {subject.label} {len(chosen)} are shown: of those "
        "that are many, the busiest, the median and the idlest of the step."
    )


def legend(pairs: Sequence[tuple[Subject, Step]]) -> Legend:
    """What the colours mean; the driver's where it has kept the learner waiting."""
    steps = {subject.index: step for subject, step in pairs}
    groups = list(charts.legend([subject for subject, _ in pairs], lambda s: steps[s.index].window))
    windows = [(subject, step.window) for subject, step in pairs]
    kinds = {s["kind"] for subject, window in windows for s in _driver(subject, window)}
    keys = [(words, palette.OF_KINDS[kind]) for kind, words in DRIVER.items() if kind in kinds]
    return [*groups, ("driver", keys)] if keys else groups


def _driver(subject: Subject, window: Interval) -> list[Span]:
    """What has kept the learner waiting between two steps."""
    mine = [s for s in subject.run.spans if s["process"] == "driver" and s["kind"] in DRIVER]
    return [span for span in mine if span["began"] < window[1] and span["ended"] > window[0]]


def _table(chosen: Sequence[tuple[str, Lane]], window: Interval) -> Table:
    rows = []
    for name, lane in chosen:
        spent = sorted(lane.shares(window).items(), key=lambda item: item[1], reverse=True)
        rows.append((name, ", ".join(f"{word} {share(part)}" for word, part in spent if part >= 0.005)))
    return Table(header=("", "shares of the step"), rows=rows, numbers=False)
