"""The timelines of a run: its steps, the spans of each shard and rank, and their shares of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlinf_async.observe.spans import SPAN_KINDS, Process, Role, Span, kind_and_rank, kind_words

Interval = tuple[float, float]
"""Begin and end in seconds; they may be equal."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as ordered, disjoint, non-empty intervals that do not touch."""
    joined: list[Interval] = []
    for began, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if joined and began <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((began, end))
    return joined


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two results of `union`."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        began, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if began < end:
            common.append((began, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the part of `a` outside of `b`; both are results of `union`."""
    rest: list[Interval] = []
    j = 0
    for began, end in a:
        while j < len(b) and b[j][1] <= began:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if began < b[k][0]:
                rest.append((began, b[k][0]))
            began = max(began, b[k][1])
            k += 1
        if began < end:
            rest.append((began, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    """Return the summed seconds of disjoint intervals."""
    return sum(end - began for began, end in intervals)


@dataclass(frozen=True, kw_only=True)
class StepInterval:
    """A step from the end of the previous step to its own end, including an evaluation or checkpoint after
    it.
    """

    number: int
    began: float
    ended: float

    @property
    def window(self) -> Interval:
        return self.began, self.ended

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def steps_of(spans: Sequence[Span]) -> list[StepInterval]:
    """Return the ended steps in order; the first begins with its training."""
    began: dict[int, float] = {}
    ends: dict[int, float] = {}
    for span in spans:
        if span["process"] != Process.DRIVER or "error" in span or not isinstance(span.get("step"), int):
            continue
        number = span["step"]
        if span["kind"] == "learn":
            began[number] = span["began"]
        ends[number] = max(ends.get(number, span["ended"]), span["ended"])
    steps: list[StepInterval] = []
    for number in sorted(began):
        start = steps[-1].ended if steps else began[number]
        steps.append(StepInterval(number=number, began=start, ended=ends[number]))
    return steps


def measured(spans: Sequence[Span]) -> Interval | None:
    """Return the interval that shares refer to: all steps after the first, which also fills the pipeline.

    With fewer than two steps, it is the time from the first span to the last; None without spans.
    """
    steps = steps_of(spans)
    if len(steps) > 1:
        return steps[0].ended, steps[-1].ended
    if not spans:
        return None
    window = min(span["began"] for span in spans), max(span["ended"] for span in spans)
    return window if window[0] < window[1] else None


def slowest(steps: Sequence[StepInterval], count: int) -> list[StepInterval]:
    """Return the `count` slowest steps after the first, in the order of the run."""
    longest = sorted(steps[1:], key=lambda step: step.seconds, reverse=True)[:count]
    return sorted(longest, key=lambda step: step.number)


REST_WORD = "rest"
WORK_KINDS = {kind.name for kind in SPAN_KINDS.values() if kind.role in (Role.WORK, Role.PREPARATION)}
"""The kinds of spans that make a shard or rank busy."""


@dataclass(frozen=True)
class Part:
    """One kind of shard or rank, and the words for its activities."""

    name: str
    """The name of the part in the metrics and in the table of span kinds."""
    member: str
    """The word for one shard or rank of the part."""
    rest: str = REST_WORD
    """The word for time without a span."""

    @cached_property
    def uses(self) -> Mapping[str, Sequence[str]]:
        """The kinds of spans for each word, in order of their weight."""
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
"""The index of each process's part."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The spans of one shard or rank."""

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
        """Return the intervals of the window for each of `part.words`; together they cover it once."""
        spans, rest = self.within(window), union([window])
        times: dict[str, list[Interval]] = {}
        for word, kinds in self.part.uses.items():
            covered = union((span["began"], span["ended"]) for span in spans if span["kind"] in kinds)
            times[word] = intersection(rest, covered)
            rest = difference(rest, covered)
        return {**times, self.part.rest: rest}

    def busy(self, window: Interval) -> float:
        """Return the busy share of the window."""
        working = union((s["began"], s["ended"]) for s in self.within(window) if s["kind"] in WORK_KINDS)
        return length(intersection(union([window]), working)) / (window[1] - window[0])


def timelines_of(spans: Sequence[Span]) -> list[Timeline]:
    """Return the timelines of every training shard, inference rank and learner rank, in this order."""
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
    """Return the index of the part and the number of the shard or rank; None without a timeline."""
    process, number = kind_and_rank(span["process"])
    if process == Process.ENV:
        # Evaluation has separate shards, and their steps are not recorded.
        number = span.get("shard") if span.get("mode", "train") == "train" else None
    return (
        (PART_OF_PROCESS[process], number) if process in PART_OF_PROCESS and isinstance(number, int) else None
    )


def of_part(timelines: Sequence[Timeline], part: Part) -> list[Timeline]:
    return [timeline for timeline in timelines if timeline.part is part]


def extremes(timelines: Sequence[Timeline], window: Interval) -> list[tuple[str, Timeline]]:
    """Return the busiest, the median and the idlest timeline, each with its word."""
    order = sorted(timelines, key=lambda timeline: timeline.busy(window), reverse=True)
    return list(
        zip(("busiest", "median", "idlest"), (order[0], order[len(order) // 2], order[-1]), strict=True)
    )


def mean_shares(timelines: Sequence[Timeline], window: Interval) -> dict[str, float]:
    """Return the mean shares of several timelines of one part; {} without timelines."""
    each = [timeline.shares(window) for timeline in timelines]
    return {word: sum(shares[word] for shares in each) / len(each) for word in each[0]} if each else {}
