"""The summary of a run, for the display and for `summary.json`, and the part of the run that bounds its
speed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.failures import FaultCounts
from rlinf_async.observe.meters import Spread, StepReport

SATURATED_SHARE = 0.7
"""A part that is busy for at least this share of the time bounds the run."""

BOUND_PHRASES = {
    "env": ("Environments bound", "the busiest shard works"),
    "inference": ("Inference bounds", "the busiest rank works"),
    "learner": ("The learner bounds", "the busiest rank works"),
    "publication": ("Weight publication bounds", "it keeps the learner"),
}
PART_NAMES = {
    "env": "the environments",
    "inference": "inference",
    "learner": "the learner",
    "publication": "publication",
}


@dataclass(frozen=True)
class Diagnosis:
    """The busiest part of a run or of a step, and the share of the time that it is busy, 0 to 1.

    Every environment contributes equally to a batch, so the busiest shard counts, not the mean of the shards.
    The share is also the overlap efficiency: the busy time of the busiest part over the whole time.
    """

    part: str
    share: float

    @classmethod
    def of(cls, busiest: Mapping[str, float]) -> Diagnosis:
        """`busiest`: the busy share of each part's busiest process, by the keys of `BOUND_PHRASES`."""
        part = max(busiest, key=lambda name: busiest[name])
        return cls(part, busiest[part])

    @property
    def saturated(self) -> bool:
        return self.share >= SATURATED_SHARE

    def sentence(self, what: str = "this run") -> str:
        verb, subject = BOUND_PHRASES[self.part]
        share = f"{subject} {self.share:.0%} of the time"
        if self.saturated:
            return f"{verb} {what}: {share}."
        return f"Nothing is busy all the time in {what}: of {PART_NAMES[self.part]}, {share}."


SUCCESS_WINDOW_STEPS = 4
"""The number of first and of last steps over which success is averaged: one step has few episodes."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Sums and means over the steps of a run; shares and rates are weighted by time."""

    steps: int
    seconds: float
    env_steps: int
    busy: dict[str, float]
    bound: Diagnosis | None
    """The busiest part, over the steps after the first, in which the pipeline fills."""
    staleness: Spread
    batch_size: Spread
    success: tuple[float, float] | None
    """Mean success rate of the first and of the last `window` steps."""
    window: int
    ledger: Ledger
    faults: FaultCounts

    @classmethod
    def of(
        cls, reports: Iterable[StepReport], ledger: Ledger, faults: FaultCounts | None = None
    ) -> RunSummary:
        """Sum up the reports of a whole run; a run that goes on adds them one by one to a `Tally`."""
        tally = Tally()
        for report in reports:
            tally.add(report)
        return tally.summary(ledger, faults)

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps trained for the first time, per second: the throughput that counts."""
        return self.env_steps / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        ledger = self.ledger
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "env_steps": self.env_steps,
            "env_steps_per_second": self.env_steps_per_second,
            "busy": self.busy,
            "bound": None if self.bound is None else {"part": self.bound.part, "share": self.bound.share},
            "staleness": self.staleness.as_dict(),
            "batch_size": self.batch_size.as_dict(),
            "success": None
            if self.success is None
            else dict(zip(("first", "last"), self.success, strict=True)),
            "trajectories": {
                "produced": ledger.produced,
                "trained": ledger.trained,
                "in_flight": ledger.in_flight,
                "refused": dict(ledger.refused),
            },
            "faults": self.faults.as_dict(),
        }


class Tally:
    """Sums over the steps of a run; its size does not grow with their number."""

    def __init__(self) -> None:
        self._steps = self._env_steps = 0
        self._seconds = 0.0
        self._busy: dict[str, float] = defaultdict(float)
        self._first: StepReport | None = None
        self._busiest: dict[str, float] = defaultdict(float)
        self._busiest_seconds = 0.0
        self._staleness, self._batch_size = Spread(), Spread()
        self._first_success: list[float] = []
        self._last_success: deque[float] = deque(maxlen=SUCCESS_WINDOW_STEPS)

    def add(self, report: StepReport) -> None:
        """Add an ended step; steps must be added in order."""
        self._steps += 1
        self._env_steps += report.env_steps
        self._seconds += report.seconds
        for name, shares in report.busy.items():
            self._busy[name] += shares.mean * report.seconds
        if self._first is None:
            self._first = report
        else:
            self._busiest_seconds += report.seconds
            for name, share in report.busiest.items():
                self._busiest[name] += share * report.seconds
        self._staleness.merge(report.staleness)
        self._batch_size.merge(report.batch_size)
        if report.success is not None:
            self._last_success.append(report.success)
            if len(self._first_success) < SUCCESS_WINDOW_STEPS:
                self._first_success.append(report.success)

    def summary(self, ledger: Ledger, faults: FaultCounts | None = None) -> RunSummary:
        """Return the summary of the steps so far; `faults` are of the whole run, with earlier attempts."""
        seconds, window = self._seconds, len(self._first_success)
        ends = (self._first_success, self._last_success)
        # Both windows have the same number of steps: each success goes into both, up to the same length.
        first, last = (sum(values) / max(1, window) for values in ends)
        return RunSummary(
            steps=self._steps,
            seconds=seconds,
            env_steps=self._env_steps,
            busy={name: busy / seconds for name, busy in self._busy.items()} if seconds else {},
            bound=self._bound(),
            staleness=self._staleness,
            batch_size=self._batch_size,
            window=window,
            success=(first, last) if window else None,
            ledger=ledger,
            faults=faults or FaultCounts(),
        )

    def _bound(self) -> Diagnosis | None:
        if self._busiest_seconds:
            return Diagnosis.of({name: busy / self._busiest_seconds for name, busy in self._busiest.items()})
        return Diagnosis.of(self._first.busiest) if self._first and self._first.seconds else None
