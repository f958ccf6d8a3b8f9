"""The begin and the end of each step of a run, by the record of its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.lab.report.intervals import Interval
from rlinf_async.observe.spans import Process, Span


@dataclass(frozen=True, kw_only=True)
class Step:
    """From the end of the step before to its own, with the evaluation or the checkpoint that followed."""

    number: int
    began: float
    ended: float

    @property
    def window(self) -> Interval:
        return self.began, self.ended

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def steps_of(spans: Sequence[Span]) -> list[Step]:
    """The steps that have ended, in order; the first begins with its learning."""
    began: dict[int, float] = {}
    ends: dict[int, float] = {}
    for span in spans:
        if span["process"] != Process.DRIVER or "error" in span or not isinstance(span.get("step"), int):
            continue
        number = span["step"]
        if span["kind"] == "learn":
            began[number] = span["began"]
        ends[number] = max(ends.get(number, span["ended"]), span["ended"])
    steps: list[Step] = []
    for number in sorted(began):
        start = steps[-1].ended if steps else began[number]
        steps.append(Step(number=number, began=start, ended=ends[number]))
    return steps


def measured(spans: Sequence[Span]) -> Interval | None:
    """The time that shares are of: all steps after the first, which also fills the pipeline.

    Without two steps, from the first span to the last; None without spans.
    """
    steps = steps_of(spans)
    if len(steps) > 1:
        return steps[0].ended, steps[-1].ended
    if not spans:
        return None
    window = min(span["began"] for span in spans), max(span["ended"] for span in spans)
    return window if window[0] < window[1] else None


def slowest(steps: Sequence[Step], count: int) -> list[Step]:
    """The slowest steps after the first, in the order of the run."""
    longest = sorted(steps[1:], key=lambda step: step.seconds, reverse=True)[:count]
    return sorted(longest, key=lambda step: step.number)
