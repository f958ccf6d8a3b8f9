"""How large batches were, and where the time of an answer goes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlinf_async.report import palette
from rlinf_async.report.charts import figure_json, of_runs
from rlinf_async.report.content import Figure, Legend, Table
from rlinf_async.report.measures import durations
from rlinf_async.report.subject import Subject
from rlinf_async.report.words import duration, number, share

HEIGHT = 240
PER_DECADE = 6
"""Bins of a logarithmic histogram."""
BARS = 40
"""Batch sizes are counted one by one up to so many."""

Series = tuple[str, str, str, list[float]]
"""Name, colour, dash, and values."""


def batch_sizes(subjects: Sequence[Subject]) -> Figure | None:
    """Samples in a forward pass."""
    series = [(s, _sizes(s)) for s in subjects]
    known = [(subject, sizes) for subject, sizes in series if sizes]
    if not known:
        return None
    width = max(1, math.ceil(max(max(sizes) for _, sizes in known) / BARS))
    bins = sorted({_bin(size, width) for _, sizes in known for size in sizes})
    counts = [(subject, len(sizes), Counter(_bin(size, width) for size in sizes)) for subject, sizes in known]
    traces = [
        {
            "type": "bar",
            "name": subject.label,
            "x": [low + (width - 1) / 2 for low in bins],
            "y": [round(count[low] / total, 5) for low in bins],
            "marker": {"color": palette.of_run(subject.index)},
            "customdata": [_range(low, width) for low in bins],
            "hovertemplate": "%{customdata} samples: %{y:.1%} of the passes<extra></extra>",
        }
        for subject, total, count in counts
    ]
    return Figure(
        title="Batch size of forward passes",
        note=" ".join(
            f"{_whose(subject, known)}{len(sizes)} forward passes of {number(statistics.fmean(sizes))} "
            f"samples on average{_limit(subject)}."
            for subject, sizes in known
        ),
        json=figure_json(
            traces,
            height=HEIGHT,
            bargap=0.15,
            xaxis={"title": {"text": "samples"}, "showgrid": False},
            yaxis={"tickformat": ".0%", "rangemode": "tozero"},
        ),
        height=HEIGHT,
        legend=of_runs([subject for subject, _ in known]),
        table=Table(
            header=("samples", *(subject.label for subject, _ in known)),
            rows=[
                (_range(low, width), *(share(count[low] / total) for _, total, count in counts))
                for low in bins
            ],
        ),
    )


def queue_waits(subjects: Sequence[Subject]) -> Figure | None:
    """How long the oldest request of a batch had waited in the queue."""
    series = [
        (s.label, palette.of_run(s.index), palette.dash_of_run(s.index), durations(s.run.spans, "queued"))
        for s in subjects
    ]
    return _log_histogram(
        "Wait in the queue",
        [each for each in series if each[3]],
        legend=of_runs(subjects),
        what="The oldest request of a batch waited",
    )


def trips(subject: Subject, *, alone: bool) -> Figure | None:
    """From a shard's request to its answer, beside the forward passes that made it."""
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
    counts = [(each, Counter(_decade(value) for value in each[3])) for each in series]
    found = {place for _, count in counts for place in count}
    places = range(min(found), max(found) + 1)
    edges = [_edge(place) for place in range(places.start, places.stop + 1)]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [edges[0], *edges],
            "y": [0, *(round(count[place] / len(values), 5) for place in places), 0],
            "line": {"shape": "hv", "color": colour, "width": 2, "dash": dash},
            "fill": "tozeroy",
            "fillcolor": _faint(colour),
            "hovertemplate": f"{name}: %{{y:.1%}} from %{{x:.3~s}}s<extra></extra>",
        }
        for (name, colour, dash, values), count in counts
    ]
    medians = [(name, duration(statistics.median(values))) for name, _, _, values in series]
    if len(medians) == 1 and what:
        note = f"{what} {medians[0][1]} (median)."
    else:
        note = f"Medians: {', '.join(f'{name} {median}' for name, median in medians)}."
    ticks = _ticks(edges[0], edges[-1])
    return Figure(
        title=title,
        note=note,
        json=figure_json(
            traces,
            height=HEIGHT,
            hovermode="x",
            xaxis={"type": "log", "tickvals": ticks, "ticktext": [duration(tick) for tick in ticks]},
            yaxis={"tickformat": ".0%", "rangemode": "tozero"},
        ),
        height=HEIGHT,
        legend=legend,
        table=Table(
            header=("from", "to", *(name for name, _, _, _ in series)),
            rows=[
                (
                    duration(_edge(place)),
                    duration(_edge(place + 1)),
                    *(share(count[place] / len(values)) for (_, _, _, values), count in counts),
                )
                for place in places
            ],
        ),
    )


def _decade(seconds: float) -> int:
    return math.floor(math.log10(max(seconds, 1e-6)) * PER_DECADE + 1e-9)


def _edge(place: int) -> float:
    return float(10 ** (place / PER_DECADE))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers of seconds between the two: decades, and steps between them where those are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 200 else (1, 2, 5)
    return [
        tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high * 1.001
    ]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


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


def _whose(subject: Subject, known: Sequence[Any]) -> str:
    return f"{subject.label}: " if len(known) > 1 else ""
