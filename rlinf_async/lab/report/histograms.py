"""The sizes of batches, and the parts of the time until an answer."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_async.lab.report import palette
from rlinf_async.lab.report.axes import categories, log_axis, round_axis
from rlinf_async.lab.report.charts import of_runs
from rlinf_async.lab.report.content import Figure, Legend, Table
from rlinf_async.lab.report.drawing import area, column, line, plot
from rlinf_async.lab.report.formatting import duration, number, share
from rlinf_async.lab.report.measures import durations
from rlinf_async.lab.report.run_view import Subject

PLOT_HEIGHT = 240
PER_DECADE = 6
"""Bins of a logarithmic histogram in a decade."""
MAX_BARS = 16
"""Most batch sizes that are counted one by one."""

Series = tuple[str, str, str, list[float]]
"""A series of a histogram: its name, colour, dash, and values."""


def batch_sizes(subjects: Sequence[Subject]) -> Figure | None:
    """Samples in a forward pass: a bar for each size, or for ranges of sizes where they are many."""
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
            f"{_whose(subject, with_sizes)}{len(sizes)} forward passes of {number(statistics.fmean(sizes))} "
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
        what="The oldest request of a batch waited",
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
        what="",
    )


def _log_histogram(title: str, series: Sequence[Series], *, legend: Legend, what: str) -> Figure | None:
    if not series:
        return None
    # A value that lies on an edge belongs to the bin above, however its logarithm is rounded.
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
    if len(medians) == 1 and what:
        note = f"{what} {medians[0][1]} (median)."
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
    """The upper side of the bars of a histogram, from the ground to the ground."""
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


def _whose(subject: Subject, subjects: Sequence[Any]) -> str:
    return f"{subject.label}: " if len(subjects) > 1 else ""
