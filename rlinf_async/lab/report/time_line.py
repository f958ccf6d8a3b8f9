"""The work of every shard and rank in one step, as bars along its time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlinf_async.lab.report import charts, palette
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import round_axis
from rlinf_async.lab.report.drawing import rows as drawn_rows
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import (
    ALL_PARTS,
    Interval,
    StepInterval,
    Timeline,
    extremes,
    intersection,
    of_part,
    union,
)
from rlinf_async.observe.spans import SPAN_KINDS, Process, Role, Span, kind_words

MOST_LANES = 24
ROW, INSET = 20, 2
"""Pixels of a row, and of the space above and below its bars."""
LINE_UNITS = 10_000
"""Units of a drawing along a step."""
LABELLED_BARS = 400
"""Number of the longest bars of a time line, which have tooltips."""
MIN_VISIBLE_SHARE = 1 / 4000
"""Bars below this share of the width are less than a pixel wide."""
DRAWN_KINDS = [kind.name for role in reversed(Role) for kind in SPAN_KINDS.values() if kind.role is role]
"""Kinds of spans in the order of drawing, the weightiest last: later bars cover earlier ones."""
DRIVER_KINDS = [kind.name for kind in SPAN_KINDS.values() if kind.role is not None and "driver" in kind.parts]
"""Kinds of spans of the driver that stop the learner between two steps."""


def time_line(subject: Subject, step: StepInterval, *, most_bars: int) -> Figure:
    """Return the time line of one step; of more than `most_bars` bars, the shortest are left out."""
    lines = chosen_timelines(subject.timelines, step.window)
    rows = [name for name, _ in lines]
    bars = [
        bar
        for row, (_, timeline) in enumerate(lines)
        for bar in _bars(row, timeline.within(step.window), step.window)
    ]
    if paused := _bars(len(rows), _driver(subject, step.window), step.window):
        rows, bars = [*rows, Process.DRIVER], [*bars, *paused]
    visible = [bar for bar in bars if bar[2] >= MIN_VISIBLE_SHARE * step.seconds]
    longest = sorted(visible, key=lambda bar: bar[2], reverse=True)[:most_bars]
    x = round_axis([step.seconds], lambda at: f"{number(at)} s", low=0.0, tight=True)
    return Figure(
        title=f"{subject.label}, step {step.number}: {duration(step.seconds)}",
        note=f"The {cut} shortest bars are left out." if (cut := len(visible) - len(longest)) else "",
        drawing=drawn_rows(rows, _marks(longest, step.seconds, len(rows)), x, row=ROW, zooms=True),
        table=_table(lines, step.window),
        wide=True,
    )


def chosen_timelines(timelines: Sequence[Timeline], window: Interval) -> list[tuple[str, Timeline]]:
    """Return all timelines, or of numerous kinds the busiest, the median and the idlest in this window."""
    groups = [of_part(timelines, part) for part in ALL_PARTS]
    result = []
    for group in groups:
        if len(timelines) > MOST_LANES and len(group) > 3 and len(group) > MOST_LANES / len(ALL_PARTS):
            result += [(f"{word}: {timeline.name}", timeline) for word, timeline in extremes(group, window)]
        else:
            result += [(timeline.name, timeline) for timeline in group]
    return result


Bar = tuple[int, float, float, str, str]
"""A bar: row, seconds since the begin of the step, length in seconds, kind of span, and tooltip."""


def _bars(row: int, spans: Sequence[Span], window: Interval) -> list[Bar]:
    bars = []
    for span in spans:
        if span["kind"] not in palette.OF_KINDS:
            continue
        for began, end in intersection(union([window]), union([(span["began"], span["ended"])])):
            title = f"{kind_words(span['kind'])}, {duration(span['ended'] - span['began'])}{_facts(span)}"
            bars.append((row, began - window[0], end - began, str(span["kind"]), title))
    return bars


def _marks(bars: Sequence[Bar], seconds: float, rows: int) -> str:
    """Draw the bars as one path for each kind, with the weightiest kind on top; `bars` are longest first."""
    speaking, silent = bars[:LABELLED_BARS], bars[LABELLED_BARS:]
    paths = []
    for kind in DRAWN_KINDS:
        colour = palette.OF_KINDS[kind]
        quiet = "".join(_box(bar, seconds) for bar in silent if bar[3] == kind)
        paths += [f'<path d="{quiet}" fill="{colour}"/>'] if quiet else []
        loud = [
            f'<path d="{_box(bar, seconds)}"><title>{escape(bar[4])}</title></path>'
            for bar in speaking
            if bar[3] == kind
        ]
        paths += [f'<g fill="{colour}">{"".join(loud)}</g>'] if loud else []
    box = f'viewBox="0 0 {LINE_UNITS} {rows * ROW}" preserveAspectRatio="none" style="height:{rows * ROW}px"'
    return f'<svg {box} shape-rendering="crispEdges" aria-hidden="true">{"".join(paths)}</svg>'


def _box(bar: Bar, seconds: float) -> str:
    row, began, lasts, _, _ = bar
    x, width = round(began / seconds * LINE_UNITS), max(1, round(lasts / seconds * LINE_UNITS))
    return f"M{x} {row * ROW + INSET}h{width}v{ROW - 2 * INSET}h-{width}z"


def _facts(span: Span) -> str:
    parts = [
        f"{name} {span[name]}" for name in ("batch", "version", "size") if isinstance(span.get(name), int)
    ]
    parts += [
        f"{len(span[name])} {name}" for name in ("shards", "pieces") if isinstance(span.get(name), list)
    ]
    return f"; {', '.join(parts)}" if parts else ""


def remark(subject: Subject, step: StepInterval) -> str:
    """Return a sentence about the choice of timelines; "" if all are shown."""
    timelines, count = chosen_timelines(subject.timelines, step.window), len(subject.timelines)
    if len(timelines) == count:
        return ""
    return (
        f"Of the {count} shards and ranks of {subject.label} {len(timelines)} are shown: of those "
        "that are many, the busiest, the median and the idlest of the step."
    )


def legend(pairs: Sequence[tuple[Subject, StepInterval]]) -> Legend:
    """Return the meaning of the colours, including the driver's if it has kept the learner waiting."""
    steps = {subject.index: step for subject, step in pairs}
    groups = list(charts.legend([subject for subject, _ in pairs], lambda s: steps[s.index].window))
    windows = [(subject, step.window) for subject, step in pairs]
    kinds = {s["kind"] for subject, window in windows for s in _driver(subject, window)}
    keys = [(kind_words(kind), palette.OF_KINDS[kind]) for kind in DRIVER_KINDS if kind in kinds]
    return [*groups, (Process.DRIVER, keys)] if keys else groups


def _driver(subject: Subject, window: Interval) -> list[Span]:
    """Return the driver's spans that have kept the learner waiting between two steps."""
    spans = [s for s in subject.run.spans if s["process"] == Process.DRIVER and s["kind"] in DRIVER_KINDS]
    return [span for span in spans if span["began"] < window[1] and span["ended"] > window[0]]


def _table(timelines: Sequence[tuple[str, Timeline]], window: Interval) -> Table:
    rows = []
    for name, timeline in timelines:
        spent = sorted(timeline.shares(window).items(), key=lambda item: item[1], reverse=True)
        rows.append(
            (
                name,
                ", ".join(f"{word} {share(time_share)}" for word, time_share in spent if time_share >= 0.005),
            )
        )
    return Table(header=("", "shares of the step"), rows=rows, numbers=False)
