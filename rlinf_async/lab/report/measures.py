"""The main numbers of a run, for the head of the page and for advice."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.timelines import (
    ALL_PARTS,
    LEARNER_PART,
    Interval,
    Timeline,
    difference,
    intersection,
    length,
    mean_shares,
    measured,
    of_part,
    timelines_of,
    union,
)
from rlinf_async.observe.events import SECONDS_METRIC
from rlinf_async.observe.load import Load
from rlinf_async.observe.reading.run_reader import state_of
from rlinf_async.observe.spans import Process, Span
from rlinf_async.observe.state import Diagnosis, Sums


@dataclass(frozen=True)
class Staleness:
    """Trajectories by `(staleness, in flight)`, in policy versions.

    "In flight" is the number of versions published during a rollout; the rest of its staleness arose between
    its last action and its training.
    """

    trajectories: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Staleness:
        """Count the trajectories in the `accept` spans of all learner ranks."""
        counts: Counter[tuple[int, int]] = Counter()
        for span in spans:
            if span["kind"] == "accept":
                for size, staleness, in_flight in _pieces(span.get("pieces")):
                    counts[staleness, in_flight] += size
        return cls(counts)

    @property
    def total(self) -> int:
        return sum(self.trajectories.values())

    @property
    def mean_in_flight(self) -> float:
        return self._mean({at: at[1] for at in self.trajectories})

    @property
    def mean_in_queue(self) -> float:
        return self._mean({at: at[0] - at[1] for at in self.trajectories})

    def histogram(self) -> list[tuple[int, float, float, float]]:
        """Return `(staleness, fresh, in flight, in queue)`: shares of all trajectories, which sum to 1.

        The share of one staleness is divided in proportion to the versions in flight and in queue.
        """
        rows: dict[int, list[float]] = {}
        for (staleness, in_flight), count in self.trajectories.items():
            row, share = rows.setdefault(staleness, [0.0, 0.0, 0.0]), count / self.total
            if staleness == 0:
                row[0] += share
            else:
                row[1] += share * in_flight / staleness
                row[2] += share * (staleness - in_flight) / staleness
        return [(staleness, row[0], row[1], row[2]) for staleness, row in sorted(rows.items())]

    def _mean(self, ages: Mapping[tuple[int, int], int]) -> float:
        return (
            sum(age * self.trajectories[at] for at, age in ages.items()) / self.total if self.total else 0.0
        )


def _pieces(facts: object) -> list[tuple[int, int, int]]:
    """Return `(size, staleness, in flight)` of the pieces in a span; malformed entries are left out."""
    pieces = [each for each in facts if isinstance(each, list)] if isinstance(facts, list) else []
    whole = [each for each in pieces if len(each) == 6 and all(isinstance(number, int) for number in each)]
    return [(each[3], each[4], each[5]) for each in whole if each[3] > 0 and 0 <= each[5] <= each[4]]


def refused(run: RunFiles) -> dict[str, int] | None:
    """Return the refused trajectories by reason; None if unknown."""
    ledger = run.summary.get("trajectories")
    if ledger is None and run.status is not None:
        ledger = run.status.processes.get(Process.COORDINATOR.numbered(0))
    counts = ledger.get("refused") if isinstance(ledger, dict) else None
    if not isinstance(counts, dict):
        return None
    return {str(reason): count for reason, count in counts.items() if isinstance(count, int)}


Line = Mapping[str, float]
"""The metrics of a step."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Measures of the steps after the first, which also fills the pipeline; weighted by time.

    An unknown measure is None, and a share without records is left out.
    """

    steps: int = 0
    """Steps that the run has reported, including the first."""
    rate: float | None = None
    """Fresh environment steps per second."""
    step_s: float | None = None
    """The median duration of a step."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """The mean busy share of each part."""
    busiest: Mapping[str, float] = field(default_factory=dict)
    """The busy share of the busiest process of each part, and that of `publication`."""
    env_steps: float | None = None
    """Fresh environment steps in a step, on average."""
    mean_step_s: float | None = None
    load: Load | None = None
    without_accelerator: bool = False
    """True if inference and learner had no accelerator."""
    staleness: float | None = None
    staleness_max: float | None = None
    batch_size: float | None = None
    success: tuple[float, float] | None = None
    """Mean success rates of the first and of the last steps."""
    returns: tuple[float, float] | None = None
    refused: Mapping[str, int] | None = None
    publication_s: float | None = None
    """Seconds of the learner's time that publication takes in a step."""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The time shares of the mean shard or rank of each part, by the word for its activity."""
    forward_s: float | None = None
    ask_s: float | None = None
    queued_s: float | None = None
    full_batches: float | None = None
    """The share of forward passes that held `max_batch_size` samples."""
    beside_micro_batches: float | None = None
    """The share of training outside of micro-batches and optimizer steps."""
    driver: Mapping[str, float] = field(default_factory=dict)
    """The shares of the time that the driver spends on `evaluate` and `save`."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        return (
            Diagnosis.of(self.busiest, self.load, on_cpu=self.without_accelerator) if self.busiest else None
        )

    @property
    def efficiency(self) -> float | None:
        """Overlap efficiency: the busy time of the busiest part over the whole time."""
        return self.diagnosis.share if self.diagnosis is not None else None

    def share(self, part: str, word: str) -> float:
        """Return the share of the mean shard or rank of `part` for that word; 0 where it was not recorded."""
        return self.shares.get(part, {}).get(word, 0.0)


def measure(run: RunFiles) -> Measures:
    """Return the measures of a run, as far as its records have them."""
    state, window = state_of(run.facts, run.metrics), measured(run.spans)
    measures: dict[str, Any] = _of_steps(state.regular) if state.regular.steps else {}
    if window is not None:
        measures |= _of_spans(run, window)
    timed = [line[SECONDS_METRIC] for line in run.metrics if line.get(SECONDS_METRIC, 0.0) > 0]
    return Measures(
        step_s=statistics.median(timed[1:] or timed) if timed else None,
        without_accelerator=state.on_cpu,
        steps=len(run.metrics),
        success=state.success.means,
        returns=state.returns.means,
        refused=refused(run),
        **measures,
    )


def _of_steps(sums: Sums) -> dict[str, Any]:
    staleness, batch_size = sums.staleness, sums.batch_size
    return {
        "rate": sums.env_steps / sums.seconds,
        "mean_step_s": sums.seconds / sums.steps,
        "env_steps": sums.env_steps / sums.steps,
        "busy": sums.busy,
        "busiest": sums.busiest,
        "load": sums.load,
        "publication_s": sums.publication_s / sums.steps,
        "staleness": staleness.mean if staleness.count else None,
        "staleness_max": staleness.high if staleness.count else None,
        "batch_size": batch_size.mean if batch_size.count else None,
    }


def _of_spans(run: RunFiles, window: Interval) -> dict[str, Any]:
    timelines = timelines_of(run.spans)
    inside = [span for span in run.spans if window[0] <= span["began"] and span["ended"] <= window[1]]
    full = run.facts.get("max_batch_size")
    sizes = [span["size"] for span in inside if span["kind"] == "forward" and _number(span.get("size"))]
    return {
        "shares": {part.name: mean_shares(of_part(timelines, part), window) for part in ALL_PARTS},
        "forward_s": _mean_duration(inside, "forward"),
        "ask_s": _mean_duration(inside, "ask"),
        "queued_s": _mean_duration(inside, "queued"),
        "full_batches": sum(size >= full for size in sizes) / len(sizes) if sizes and _number(full) else None,
        "beside_micro_batches": _beside_micro_batches(of_part(timelines, LEARNER_PART), window),
        "driver": {kind: _driver_share(run.spans, kind, window) for kind in ("evaluate", "save")},
    }


def durations(spans: Iterable[Span], kind: str) -> list[float]:
    """Return the seconds of all spans of a kind; of requests, only those of training."""
    return [
        span["ended"] - span["began"]
        for span in spans
        if span["kind"] == kind and span.get("mode", "train") == "train"
    ]


def _mean_duration(spans: Iterable[Span], kind: str) -> float | None:
    seconds = durations(spans, kind)
    return statistics.fmean(seconds) if seconds else None


def _beside_micro_batches(timelines: Sequence[Timeline], window: Interval) -> float | None:
    """Return the share of training outside of micro-batches; None where these were not recorded, as on the
    local host.
    """
    training = inside = beside = 0.0
    for timeline in timelines:
        spans = timeline.within(window)
        whole = _union(spans, ("accept", "finish"), window)
        micro_batches = _union(spans, ("micro-batch", "optimizer step"), window)
        training += length(whole)
        inside += length(micro_batches)
        beside += length(difference(whole, micro_batches))
    return beside / training if training and inside else None


def _driver_share(spans: Iterable[Span], kind: str, window: Interval) -> float:
    intervals = _union([span for span in spans if span["process"] == Process.DRIVER], (kind,), window)
    return length(intervals) / (window[1] - window[0])


def _union(spans: Iterable[Span], kinds: tuple[str, ...], window: Interval) -> list[Interval]:
    times = union((span["began"], span["ended"]) for span in spans if span["kind"] in kinds)
    return intersection(union([window]), times)


def mean_of(lines: Sequence[Line], name: str, *, weight: str = "async/step_seconds") -> float | None:
    """Return the weighted mean of a metric over steps; None if no step has it."""
    weights = [(line[name], line.get(weight, 0.0)) for line in lines if name in line]
    total = sum(each for _, each in weights)
    return sum(value * each for value, each in weights) / total if total > 0 else None


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
