"""The timelines of a run: the spans of each shard and rank, and their shares of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlinf_async.lab.report.intervals import Interval, difference, intersection, length, union
from rlinf_async.observe.spans import SPAN_KINDS, Process, Role, Span, kind_and_rank, kind_words

REST_WORD = "rest"
WORK_KINDS = {kind.name for kind in SPAN_KINDS.values() if kind.role in (Role.WORK, Role.PREPARATION)}
"""The kinds of spans that make a shard or rank busy."""


@dataclass(frozen=True)
class Part:
    """One kind of shard or rank, and what its time is spent on."""

    name: str
    """The name of the part in the metrics, and in the table of kinds."""
    member: str
    """The word for one shard or rank of the part."""
    rest: str = REST_WORD
    """The word for the time of a shard or rank that no span covers."""

    @cached_property
    def uses(self) -> Mapping[str, Sequence[str]]:
        """Kinds of spans by the words that they are counted under, in order of their weight."""
        kinds = [kind for kind in SPAN_KINDS.values() if self.name in kind.parts]
        roles = [[kind.name for kind in kinds if kind.role is role] for role in Role]
        return {kind_words(kinds[0]): kinds for kinds in roles if kinds}

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.uses, self.rest)


ENV_PART = Part("env", "shard")
INFERENCE_PART = Part("inference", Process.INFERENCE)
LEARNER_PART = Part("learner", Process.LEARNER, "waiting for the driver or an evaluation")
ALL_PARTS = (ENV_PART, INFERENCE_PART, LEARNER_PART)
PART_OF_PROCESS: Mapping[str, int] = {Process.ENV: 0, Process.INFERENCE: 1, Process.LEARNER: 2}
"""The index of the part that a process belongs to."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One shard or rank."""

    part: Part
    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return f"{self.part.member} {self.number}"

    def within(self, window: Interval) -> list[Span]:
        return [span for span in self.spans if span["began"] < window[1] and span["ended"] > window[0]]

    def shares(self, window: Interval) -> dict[str, float]:
        """Return shares of the time in `window`, by `part.words`; they sum to 1."""
        return {word: length(times) / (window[1] - window[0]) for word, times in self.times(window).items()}

    def times(self, window: Interval) -> dict[str, list[Interval]]:
        """The window, divided among `part.words`."""
        spans, rest = self.within(window), union([window])
        times: dict[str, list[Interval]] = {}
        for word, kinds in self.part.uses.items():
            covered = union((span["began"], span["ended"]) for span in spans if span["kind"] in kinds)
            times[word] = intersection(rest, covered)
            rest = difference(rest, covered)
        return {**times, self.part.rest: rest}

    def busy(self, window: Interval) -> float:
        """The share of the time in which it works."""
        working = union((s["began"], s["ended"]) for s in self.within(window) if s["kind"] in WORK_KINDS)
        return length(intersection(union([window]), working)) / (window[1] - window[0])


def timelines_of(spans: Sequence[Span]) -> list[Timeline]:
    """Every shard that trains, every inference rank and every learner rank, in this order."""
    spans_of: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        place = _place(span)
        if place is not None:
            spans_of[place].append(span)
    return [
        Timeline(part=ALL_PARTS[part], number=number, spans=tuple(spans_of[part, number]))
        for part, number in sorted(spans_of)
    ]


def _place(span: Span) -> tuple[int, int] | None:
    """The index of the part, and the number of the shard or rank; None for what has no timeline."""
    process, number = kind_and_rank(span["process"])
    if process == Process.ENV:
        # Evaluation has shards of its own, whose steps are not recorded.
        number = span.get("shard") if span.get("mode", "train") == "train" else None
    return (
        (PART_OF_PROCESS[process], number) if process in PART_OF_PROCESS and isinstance(number, int) else None
    )


def of_part(timelines: Sequence[Timeline], part: Part) -> list[Timeline]:
    return [timeline for timeline in timelines if timeline.part is part]


def extremes(timelines: Sequence[Timeline], window: Interval) -> list[tuple[str, Timeline]]:
    """The busiest, the median and the idlest of timelines, each with that word."""
    order = sorted(timelines, key=lambda timeline: timeline.busy(window), reverse=True)
    return list(
        zip(("busiest", "median", "idlest"), (order[0], order[len(order) // 2], order[-1]), strict=True)
    )


def mean_shares(timelines: Sequence[Timeline], window: Interval) -> dict[str, float]:
    """Return the mean shares of several timelines of one part; {} of none."""
    each = [timeline.shares(window) for timeline in timelines]
    return {word: sum(shares[word] for shares in each) / len(each) for word in each[0]} if each else {}
