"""The summary of a run, for the display and for `summary.json`, and the part of the run that bounds its
speed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.events import FaultCounts
from rlinf_async.observe.load import Load, torch_is_for_cpu
from rlinf_async.observe.meters import PUBLICATION_METRIC, Spread, StepReport

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
    """The bound of a run or a step: its busiest part, with the share of the time that it is busy, 0 to 1; or
    the machine.

    Every environment contributes equally to a batch, so the busiest shard counts, not the mean of the shards.
    The share is also the overlap efficiency: the busy time of the busiest part over the whole time.
    """

    part: str
    share: float
    load: Load | None = None
    """Busy processor cores; None where they are unknown."""
    on_cpu: bool = False
    """True if inference and learner have no accelerator."""

    @classmethod
    def of(cls, busiest: Mapping[str, float], load: Load | None = None, *, on_cpu: bool = False) -> Diagnosis:
        """`busiest`: the busy share of each part's busiest process, by the keys of `BOUND_PHRASES`."""
        part = max(busiest, key=lambda name: busiest[name])
        return cls(part, busiest[part], load, on_cpu)

    @property
    def saturated(self) -> bool:
        return self.share >= SATURATED_SHARE

    @property
    def is_machine(self) -> bool:
        """True if processor cores bound the run, which no setting can change.

        Busy time covers the time that a process waits for a core, so that the busiest part may be starved.
        """
        on_cores = self.part == "env" or (self.on_cpu and self.part in ("inference", "learner"))
        return self.saturated and on_cores and self.load is not None and self.load.is_full

    def sentence(self, what: str = "this run") -> str:
        """Say what bounds `what`: the same words in the terminal, in `status` and in a report."""
        verb, subject = BOUND_PHRASES[self.part]
        share = f"{subject} {self.share:.0%} of the time"
        if self.is_machine and self.load is not None:
            return f"The machine bounds {what}: {self.load.in_words()}; {share}."
        if self.saturated:
            return f"{verb} {what}: {share}."
        return f"Nothing is busy all the time in {what}: of {PART_NAMES[self.part]}, {share}."


class BoundTally:
    """Finds what bounds a run: the means of the busy shares and of the load over its steps, by time.

    The first step, which also fills the pipeline, counts only while it is the only one.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._first: tuple[float, Mapping[str, float], Load | None] | None = None
        self._seconds = self._loaded_seconds = 0.0
        self._busiest: dict[str, float] = defaultdict(float)
        self._cores = [0.0, 0.0, 0.0]

    def add(self, seconds: float, busiest: Mapping[str, float], load: Load | None) -> None:
        """Add an ended step; `busiest` has the busy share of the busiest process of each part."""
        if self._first is None:
            self._first = seconds, busiest, load
            return
        self._seconds += seconds
        for name, share in busiest.items():
            self._busiest[name] += share * seconds
        if load is not None:
            self._loaded_seconds += seconds
            each = (load.own, load.others, load.cores)
            self._cores = [total + seconds * cores for total, cores in zip(self._cores, each, strict=True)]

    def diagnosis(self) -> Diagnosis | None:
        """Return what bounds the steps so far; None without a step that took time."""
        if not self._seconds:
            if self._first is None or not self._first[0] or not self._first[1]:
                return None
            return Diagnosis.of(*self._first[1:], on_cpu=self._on_cpu)
        load = None
        if self._loaded_seconds:
            own, others, cores = (total / self._loaded_seconds for total in self._cores)
            load = Load(own=own, others=others, cores=cores)
        busiest = {name: busy / self._seconds for name, busy in self._busiest.items()}
        return Diagnosis.of(busiest, load, on_cpu=self._on_cpu) if busiest else None


def bound_of(lines: Iterable[Mapping[str, float]], *, on_cpu: bool) -> Diagnosis | None:
    """Return what bounds a run, from its lines of `metrics.jsonl`; None if they do not tell."""
    tally = BoundTally(on_cpu=on_cpu)
    for line in lines:
        seconds = line.get("async/step_seconds", 0.0)
        # Without a record of the busiest process, the mean of its part stands for it.
        shares = {
            part: line.get(f"async/busiest/{part}", line.get(f"async/busy/{part}")) for part in PART_NAMES
        }
        busiest = {part: share for part, share in shares.items() if share is not None}
        if seconds > 0 and busiest:
            published = min(1.0, line.get(PUBLICATION_METRIC, 0.0) / seconds)
            tally.add(seconds, {**busiest, "publication": published}, Load.from_metrics(line))
    return tally.diagnosis()


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
    """The busiest part, over the steps after the first, which also fills the pipeline."""
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
        self._bound = BoundTally(on_cpu=torch_is_for_cpu())
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
        self._bound.add(report.seconds, report.busiest, report.load)
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
            bound=self._bound.diagnosis(),
            staleness=self._staleness,
            batch_size=self._batch_size,
            window=window,
            success=(first, last) if window else None,
            ledger=ledger,
            faults=faults or FaultCounts(),
        )
