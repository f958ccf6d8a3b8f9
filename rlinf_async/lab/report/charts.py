"""Bars: what each process spends its time on, how old trajectories were, what was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.axes import Axis, categories, round_axis
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import Point, column, plot, rows, stacked
from rlinf_async.lab.report.formatting import number, share
from rlinf_async.lab.report.intervals import Interval
from rlinf_async.lab.report.lines import Form, Line, line_figure
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.staleness import Staleness
from rlinf_async.lab.report.timelines import (
    ALL_PARTS,
    REST_WORD,
    Part,
    Timeline,
    extremes,
    mean_shares,
    of_part,
)

MOST_ROWS = 12
"""Most shards or ranks of one kind that are shown one by one."""
ROW_PIXELS = 26
"""Pixels of a row."""
MIN_LABELLED_SHARE = 0.07
"""A part of a row that is a smaller share of it has no room for a number."""
SHARE_AXIS = Axis(low=0.0, high=1.0, ticks=[(at / 4, share(at / 4)) for at in range(5)])


def of_runs(subjects: Sequence[Subject], every: Sequence[Subject]) -> Legend:
    """Return the colour of each run that is shown; nothing where the page is about one."""
    keys = [(subject.label, palette.of_run(subject.index)) for subject in subjects]
    return [("", keys)] if len(every) > 1 else []


def over_steps(
    title: str,
    series: Sequence[tuple[Subject, Sequence[Point]]],
    *,
    note: str,
    form: Form,
    low: float | None = None,
    high: float | None = None,
) -> Figure | None:
    """A line over the steps for each run that has points; None where no run has two."""
    lines = [(subject, line) for subject, line in series if line]
    if not any(len(line) > 1 for _, line in lines):
        return None
    return line_figure(
        title,
        [Line.of_run(subject, line) for subject, line in lines],
        note=note,
        axis="step",
        form=form,
        low=low,
        high=high,
        legend=of_runs([subject for subject, _ in lines], [subject for subject, _ in series]),
    )


def shares(subject: Subject, window: Interval) -> Figure:
    """Return the shares of every shard and rank, or of the extremes where they are many."""
    found = [row for part in ALL_PARTS for row in _rows(of_part(subject.timelines, part), window)]
    words = sorted(dict.fromkeys(word for part in ALL_PARTS for word in part.words), key=REST_WORD.__eq__)
    present = [word for word in words if any(spent.get(word, 0.0) > 0 for _, _, spent in found)]
    bars = (
        _bar(label, [(word, spent[word]) for word in present if word in spent]) for label, _, spent in found
    )
    return Figure(
        title=subject.label,
        drawing=rows([label for label, _, _ in found], "".join(bars), SHARE_AXIS, row=ROW_PIXELS),
        table=Table(
            header=("", *present),
            rows=[
                (label, *(share(spent[word]) if word in part.words else "" for word in present))
                for label, part, spent in found
            ],
        ),
        wide=True,
    )


def legend(subjects: Sequence[Subject], window: Callable[[Subject], Interval | None]) -> Legend:
    """Return the meaning of the colours of parts, as far as they are seen in the windows of the runs."""
    groups = []
    for part in ALL_PARTS:
        timelines = [
            (timeline, at) for s in subjects if (at := window(s)) for timeline in of_part(s.timelines, part)
        ]
        colours = {
            word for timeline, at in timelines for word, share in timeline.shares(at).items() if share > 0
        }
        keys = [
            (word, palette.OF_WORDS[word]) for word in part.words if word in colours and word != REST_WORD
        ]
        groups.append((f"{part.member}s", keys))
    return [(name, keys) for name, keys in groups if keys]


def _rows(timelines: Sequence[Timeline], window: Interval) -> list[tuple[str, Part, Mapping[str, float]]]:
    if len(timelines) <= MOST_ROWS:
        return [(timeline.name, timeline.part, timeline.shares(window)) for timeline in timelines]
    part = timelines[0].part
    some = [
        (f"{word}: {timeline.name}", part, timeline.shares(window))
        for word, timeline in extremes(timelines, window)
    ]
    return [*some, (f"mean of {len(timelines)} {part.member}s", part, mean_shares(timelines, window))]


def _bar(label: str, spent: Sequence[tuple[str, float]]) -> str:
    parts = []
    for word, part in spent:
        colour = palette.OF_WORDS[word]
        text = f"{part:.0%}" if colour != palette.FAINT_COLOUR and part >= MIN_LABELLED_SHARE else ""
        parts.append((part, colour, palette.on(colour), text, f"{label}: {word} {share(part)}"))
    return f'<div class="bar">{stacked(part for part in parts if part[0] > 0)}</div>'


AGE_COLOURS = (("fresh", palette.LIGHT_ORANGE), ("in flight", palette.ORANGE), ("in queue", palette.GREY))


def staleness(series: Sequence[tuple[Subject, Staleness]]) -> Figure:
    """Return the figure of the ages of trajectories, in versions, of one or several runs, and where they
    aged.
    """
    bars = [(subject.label, row[0], row[1:]) for subject, ages in series for row in ages.histogram()]
    x = _groups([label for label, _, _ in bars], [str(version) for _, version, _ in bars])
    y = round_axis([sum(parts) for _, _, parts in bars], share, low=0.0)
    marks = []
    for at, (label, version, parts) in enumerate(bars):
        below = 0.0
        for (word, colour), part in zip(AGE_COLOURS, parts, strict=True):
            title = f"{label}, {version} versions old, {word}: {share(part)} of the trajectories"
            marks += [column(at + 0.2, at + 0.8, below, below + part, x, y, fill=colour, tooltip=title)] * (
                part > 0
            )
            below += part
    return Figure(
        title="Staleness of trained trajectories",
        note=". ".join(
            f"{_named(subject, series)} {ages.mean_in_flight:.2f} versions passed in flight on average "
            f"and {ages.mean_in_queue:.2f} in the queue"
            for subject, ages in series
        )
        + ".",
        drawing=plot(marks, x, y, height=260),
        legend=[("", AGE_COLOURS)],
        table=Table(
            header=("versions old", *(word for word, _ in AGE_COLOURS)),
            rows=[
                (f"{label}: {version}" if len(series) > 1 else str(version), *map(share, parts))
                for label, version, parts in bars
            ],
        ),
    )


def _groups(labels: Sequence[str], names: Sequence[str]) -> Axis:
    """A place for each name, and below those of one label, where there are several, the label."""
    axis, count = categories(names), len(labels)
    if len(set(labels)) < 2:
        return axis.named("versions")
    middles = {label: labels.index(label) + labels.count(label) / 2 for label in labels}
    return replace(axis, captions=[(middle / count, label) for label, middle in middles.items()])


def _named(subject: Subject, points: Sequence[object]) -> str:
    return f"In {subject.label}" if len(points) > 1 else "Of the staleness,"


def refusals(series: Sequence[tuple[Subject, Mapping[str, int]]], every: Sequence[Subject]) -> Figure:
    """Trajectories that were refused, by reason."""
    reasons = sorted({reason for _, counts in series for reason in counts})
    x = round_axis([count for _, counts in series for count in counts.values()], number, low=0.0)
    bars, names = [], []
    for reason in reasons:
        for subject, counts in series:
            count, colour = counts.get(reason, 0), palette.of_run(subject.index)
            title = f"{subject.label}: {reason} {count}"
            bars.append(f'<div class="bar">{stacked([(x.place(count), colour, colour, "", title)])}</div>')
            names.append(reason if len(series) == 1 else f"{reason}: {subject.label}")
    return Figure(
        title="Refused trajectories by reason",
        drawing=rows(names, "".join(bars), x, row=ROW_PIXELS),
        legend=of_runs([subject for subject, _ in series], every),
        table=Table(
            header=("reason", *(subject.label for subject, _ in series)),
            rows=[(reason, *(str(counts.get(reason, 0)) for _, counts in series)) for reason in reasons],
        ),
    )
