"""Who did what when: the spans of each shard and each rank, and what share of the time they took."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.core.spans import Span
from rlinf_async.core.status import WORDS
from rlinf_async.report.intervals import Interval, difference, intersection, length, union

RANK = re.compile(r"(inference|learner) rank (\d+)$")
REST = "rest"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of shard or rank, and what its time is spent on.

    Where spans overlap, the seconds belong to the kind that is named first: a fetch that runs beside
    training is no wait.
    """

    name: str
    """As in the metrics."""
    lane: str
    """What one of them is called."""
    kinds: tuple[tuple[str, ...], ...]
    """Kinds of spans; those of one tuple go by the same words."""
    works: frozenset[str]
    """The kinds that make it busy."""
    rest: str = REST
    """What it does when no span says otherwise."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*(WORDS[kinds[0]] for kinds in self.kinds), self.rest)


ENV = Part(
    name="env",
    lane="shard",
    kinds=(("step",), ("reset",), ("ask",), ("gate",), ("put",)),
    works=frozenset({"step", "reset"}),
)
INFERENCE = Part(
    name="inference",
    lane="inference rank",
    kinds=(("forward",), ("load", "offload"), ("idle",)),
    works=frozenset({"forward"}),
)
LEARNER = Part(
    name="learner",
    lane="learner rank",
    kinds=(("accept", "finish"), ("copy", "offload"), ("fetch",)),
    works=frozenset({"accept", "finish"}),
    rest="waiting for the driver or an evaluation",
)
PARTS = (ENV, INFERENCE, LEARNER)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One shard or rank."""

    part: Part
    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return f"{self.part.lane} {self.number}"

    def within(self, window: Interval) -> list[Span]:
        return [span for span in self.spans if span["began"] < window[1] and span["ended"] > window[0]]

    def shares(self, window: Interval) -> dict[str, float]:
        """Of the time in `window`, by `part.words`; they sum to 1."""
        return {word: length(times) / (window[1] - window[0]) for word, times in self.times(window).items()}

    def times(self, window: Interval) -> dict[str, list[Interval]]:
        """The window, divided among `part.words`."""
        spans, left = self.within(window), union([window])
        times: dict[str, list[Interval]] = {}
        for kinds in self.part.kinds:
            taken = union((span["began"], span["ended"]) for span in spans if span["kind"] in kinds)
            times[WORDS[kinds[0]]] = intersection(left, taken)
            left = difference(left, taken)
        return {**times, self.part.rest: left}

    def busy(self, window: Interval) -> float:
        """The share of the time in which it works."""
        working = union((s["began"], s["ended"]) for s in self.within(window) if s["kind"] in self.part.works)
        return length(intersection(union([window]), working)) / (window[1] - window[0])


def lanes_of(spans: Sequence[Span]) -> list[Lane]:
    """Every shard that trains, every inference rank and every learner rank, in this order."""
    found: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        place = _place(span)
        if place is not None:
            found[place].append(span)
    return [
        Lane(part=PARTS[part], number=number, spans=tuple(found[part, number]))
        for part, number in sorted(found)
    ]


def _place(span: Span) -> tuple[int, int] | None:
    """The index of the part, and the number of the shard or rank; None for what has no lane."""
    process, shard = span["process"], span.get("shard")
    if process.startswith("env worker") and isinstance(shard, int):
        # Evaluation has shards of its own, whose steps are not recorded.
        return (0, shard) if span.get("mode", "train") == "train" else None
    rank = RANK.match(process)
    return None if rank is None else (1 if rank[1] == "inference" else 2, int(rank[2]))


def of_part(lanes: Sequence[Lane], part: Part) -> list[Lane]:
    return [lane for lane in lanes if lane.part is part]


def extremes(lanes: Sequence[Lane], window: Interval) -> list[tuple[str, Lane]]:
    """The busiest, the median and the idlest of lanes, each with that word."""
    order = sorted(lanes, key=lambda lane: lane.busy(window), reverse=True)
    return list(
        zip(("busiest", "median", "idlest"), (order[0], order[len(order) // 2], order[-1]), strict=True)
    )


def mean_shares(lanes: Sequence[Lane], window: Interval) -> dict[str, float]:
    """Of several lanes of one part; {} of none."""
    each = [lane.shares(window) for lane in lanes]
    return {word: sum(shares[word] for shares in each) / len(each) for word in each[0]} if each else {}
