"""Bars and histograms of time shares, ages of trajectories, refusals and batch sizes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import (
    Axis,
    area,
    categories,
    column,
    line,
    log_axis,
    plot,
    round_axis,
    rows,
    stacked,
)
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.lines import of_runs
from rlinf_async.lab.report.measures import Staleness, durations
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import (
    ALL_PARTS,
    REST_WORD,
    Interval,
    Part,
    Timeline,
    extremes,
    mean_shares,
    of_part,
)

MOST_ROWS = 12
"""Largest number of shards or ranks of one kind that are all shown."""
ROW_PIXELS = 26
"""Pixels of a row."""
MIN_LABELLED_SHARE = 0.07
"""Parts below this share of a row have no room for a number."""
SHARE_AXIS = Axis(low=0.0, high=1.0, ticks=[(at / 4, share(at / 4)) for at in range(5)])


def shares(subject: Subject, window: Interval) -> Figure:
    """Return the shares of every shard and rank, or of the extremes where they are many."""
    bars_of_rows = [row for part in ALL_PARTS for row in _rows(of_part(subject.timelines, part), window)]
    words = sorted(dict.fromkeys(word for part in ALL_PARTS for word in part.words), key=REST_WORD.__eq__)
    present = [word for word in words if any(spent.get(word, 0.0) > 0 for _, _, spent in bars_of_rows)]
    bars = (
        _bar(label, [(word, spent[word]) for word in present if word in spent])
        for label, _, spent in bars_of_rows
    )
    return Figure(
        title=subject.label,
        drawing=rows([label for label, _, _ in bars_of_rows], "".join(bars), SHARE_AXIS, row=ROW_PIXELS),
        table=Table(
            header=("", *present),
            rows=[
                (label, *(share(spent[word]) if word in part.words else "" for word in present))
                for label, part, spent in bars_of_rows
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
            f"{_run_words(subject, series)} {ages.mean_in_flight:.2f} versions passed in flight on average "
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
    """Return an axis with a place for each name, and with several labels, each label below its names."""
    axis, count = categories(names), len(labels)
    if len(set(labels)) < 2:
        return axis.named("versions")
    middles = {label: labels.index(label) + labels.count(label) / 2 for label in labels}
    return replace(axis, captions=[(middle / count, label) for label, middle in middles.items()])


def _run_words(subject: Subject, points: Sequence[object]) -> str:
    return f"In {subject.label}" if len(points) > 1 else "Of the staleness,"


def refusals(series: Sequence[tuple[Subject, Mapping[str, int]]], every: Sequence[Subject]) -> Figure:
    """Return the figure of refused trajectories, by reason."""
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


PLOT_HEIGHT = 240
PER_DECADE = 6
"""Bins of a logarithmic histogram in a decade."""
MAX_BARS = 16
"""Most batch sizes that are counted one by one."""

LogSeries = tuple[str, str, str, list[float]]
"""A series of a histogram: its name, colour, dash, and values."""


def batch_sizes(subjects: Sequence[Subject]) -> Figure | None:
    """Return the figure of samples per forward pass, with a bar for each size or, of many, for ranges."""
    series = [(s, _sizes(s)) for s in subjects]
    with_sizes = [(subject, sizes) for subject, sizes in series if sizes]
    if not with_sizes:
        return None
    different = {size for _, sizes in with_sizes for size in sizes}
    width = 1 if len(different) <= MAX_BARS else math.ceil(max(different) / MAX_BARS)
    bins = sorted({_bin(size, width) for size in different})
    counts = [
        (subject, len(sizes), Counter(_bin(size, width) for size in sizes)) for subject, sizes in with_sizes
    ]
    return Figure(
        title="Batch size of forward passes",
        note=" ".join(
            f"{_owner(subject, with_sizes)}{len(sizes)} forward passes of {number(statistics.fmean(sizes))} "
            f"samples on average{_limit(subject)}."
            for subject, sizes in with_sizes
        ),
        drawing=_columns(bins, counts, width),
        legend=of_runs([subject for subject, _ in with_sizes], subjects),
        table=Table(
            header=("samples", *(subject.label for subject, _ in with_sizes)),
            rows=[
                (_range(low, width), *(share(count[low] / total) for _, total, count in counts))
                for low in bins
            ],
        ),
    )


def _columns(bins: Sequence[int], counts: Sequence[tuple[Subject, int, Counter[int]]], width: int) -> str:
    x = categories([_range(low, width) for low in bins]).named("samples")
    y = round_axis([count[low] / total for _, total, count in counts for low in bins], share, low=0.0)
    marks, each = [], 0.8 / len(counts)
    for at, low in enumerate(bins):
        for place, (subject, total, count) in enumerate(counts):
            height, start = count[low] / total, at + 0.1 + place * each
            title = f"{subject.label}: {_range(low, width)} samples in {share(height)} of the passes"
            colour = palette.of_run(subject.index)
            marks.append(column(start, start + each, 0.0, height, x, y, fill=colour, tooltip=title))
    return plot(marks, x, y, height=PLOT_HEIGHT)


def queue_waits(subjects: Sequence[Subject]) -> Figure | None:
    """Return the figure of the seconds that the oldest request of a batch had waited in the queue."""
    series = [
        (s.label, palette.of_run(s.index), palette.dash_of_run(s.index), durations(s.run.spans, "queued"))
        for s in subjects
    ]
    return _log_histogram(
        "Wait in the queue",
        [each for each in series if each[3]],
        legend=of_runs([s for s in subjects if durations(s.run.spans, "queued")], subjects),
        beginning="The oldest request of a batch waited",
    )


def round_trips(subject: Subject, *, alone: bool) -> Figure | None:
    """Return the figure of seconds from a shard's request to its answer, and of the forward passes that
    made it.
    """
    series = [
        ("request to answer", palette.BLUE, "solid", durations(subject.run.spans, "ask")),
        ("forward pass", palette.ORANGE, "solid", durations(subject.run.spans, "forward")),
    ]
    return _log_histogram(
        "Request to answer, and forward pass" + ("" if alone else f": {subject.label}"),
        [each for each in series if each[3]],
        legend=[("", [(name, colour) for name, colour, _, _ in series])],
        beginning="",
    )


def _log_histogram(
    title: str, series: Sequence[LogSeries], *, legend: Legend, beginning: str
) -> Figure | None:
    if not series:
        return None
    # A value on an edge belongs to the bin above, whatever the rounding of its logarithm.
    places = [np.log10(np.maximum(values, 1e-6)) * PER_DECADE + 1e-9 for *_, values in series]
    low, high = math.floor(min(map(np.min, places))), math.floor(max(map(np.max, places))) + 1
    bins = np.arange(low, high + 1)
    edges = (10.0 ** (bins / PER_DECADE)).tolist()
    shares = [(np.histogram(each, bins)[0] / len(each)).tolist() for each in places]
    x = log_axis(edges[0], edges[-1], duration)
    y = round_axis([each for heights in shares for each in heights], share, low=0.0)
    marks = []
    for (_, colour, dash, _), heights in zip(series, shares, strict=True):
        outline = _outline(edges, heights)
        marks += [area(outline, x, y, colour=colour), line(outline, x, y, colour=colour, dash=dash)]
    medians = [(name, duration(statistics.median(values))) for name, _, _, values in series]
    if len(medians) == 1 and beginning:
        note = f"{beginning} {medians[0][1]} (median)."
    else:
        note = f"Medians: {', '.join(f'{name} {median}' for name, median in medians)}."
    return Figure(
        title=title,
        note=note,
        drawing=plot(marks, x, y, height=PLOT_HEIGHT),
        legend=legend,
        table=Table(
            header=("from", "to", *(name for name, _, _, _ in series)),
            rows=[
                (duration(low), duration(high), *map(share, each))
                for low, high, *each in zip(edges, edges[1:], *shares, strict=False)
            ],
        ),
    )


def _outline(edges: Sequence[float], shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the outline of a histogram's bars, which begins and ends at 0."""
    tops = [
        (at, part) for low, high, part in zip(edges, edges[1:], shares, strict=False) for at in (low, high)
    ]
    return [(edges[0], 0.0), *tops, (edges[-1], 0.0)]


def _sizes(subject: Subject) -> list[int]:
    spans = (span for span in subject.run.spans if span["kind"] == "forward")
    return [span["size"] for span in spans if isinstance(span.get("size"), int) and span["size"] > 0]


def _bin(size: int, width: int) -> int:
    return (size - 1) // width * width + 1


def _range(low: int, width: int) -> str:
    return str(low) if width == 1 else f"{low} to {low + width - 1}"


def _limit(subject: Subject) -> str:
    most = subject.run.facts.get("max_batch_size")
    level = subject.run.facts.get("levels")
    on = isinstance(level, dict) and level.get("rollout") is True
    return f" (at most {most})" if on and isinstance(most, int) else ""


def _owner(subject: Subject, subjects: Sequence[Any]) -> str:
    return f"{subject.label}: " if len(subjects) > 1 else ""
