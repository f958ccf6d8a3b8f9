"""The state of a run: the one fold of its events, for status, summary, report and display.

The driver adds each step as it is reported, readers add those of `metrics.jsonl`, and faults. Of the sums the
state derives which part of the run bounds its speed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.events import FaultCounts, StepReport
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.load import Load, torch_is_for_cpu
from rlinf_async.observe.meters import Spread
from rlinf_async.observe.pace import Pace

SUCCESS_WINDOW_STEPS = 4
"""The number of first and of last steps over which success is averaged: one step has few episodes."""


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
        """Return the sentence about the bound of `what`, for the terminal, `status` and a report."""
        verb, subject = BOUND_PHRASES[self.part]
        share = f"{subject} {self.share:.0%} of the time"
        if self.is_machine and self.load is not None:
            return f"The machine bounds {what}: {self.load.in_words()}; {share}."
        if self.saturated:
            return f"{verb} {what}: {share}."
        return f"Nothing is busy all the time in {what}: of {PART_NAMES[self.part]}, {share}."


class Sums:
    """Sums over steps. Shares and loads are weighted by the time of the steps that have them."""

    def __init__(self) -> None:
        self.steps = self.env_steps = 0
        self.seconds = self.publication_s = 0.0
        self.staleness, self.batch_size = Spread(), Spread()
        self._busy_s = self._load_s = 0.0
        """Seconds of the steps that have shares, and of those that have a load."""
        self._busy: dict[str, float] = defaultdict(float)
        self._busiest: dict[str, float] = defaultdict(float)
        self._cores: dict[str, float] = defaultdict(float)

    def add(self, report: StepReport) -> None:
        """Add a step."""
        seconds = report.seconds
        self.steps += 1
        self.seconds += seconds
        self.env_steps += report.env_steps
        self.publication_s += report.publication * seconds
        self.staleness.merge(report.staleness)
        self.batch_size.merge(report.batch_size)
        if report.busy:
            self._busy_s += seconds
            for name, shares in report.busy.items():
                self._busy[name] += shares.mean * seconds
            for name, share in report.busiest.items():
                self._busiest[name] += share * seconds
        if report.load is not None:
            self._load_s += seconds
            for name, cores in asdict(report.load).items():
                self._cores[name] += cores * seconds

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps trained for the first time, per second: the throughput that counts."""
        return self.env_steps / self.seconds if self.seconds else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """The mean busy share of each part."""
        return {name: busy / self._busy_s for name, busy in self._busy.items()} if self._busy_s else {}

    @property
    def busiest(self) -> dict[str, float]:
        """The busy share of the busiest process of each part, and that of publication."""
        return {name: busy / self._busy_s for name, busy in self._busiest.items()} if self._busy_s else {}

    @property
    def load(self) -> Load | None:
        """The mean load; None where it was not measured."""
        means = {name: cores / self._load_s for name, cores in self._cores.items()}
        return Load(**means) if means else None


class Ends:
    """A measure of steps at the beginning and at the end of a run, and that of the last step."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._first_steps: list[float] = []
        self._last_steps: deque[float] = deque(maxlen=SUCCESS_WINDOW_STEPS)

    def add(self, value: float | None) -> None:
        """Add a step; None if it has no value."""
        self.last = value
        if value is not None:
            self._last_steps.append(value)
            if len(self._first_steps) < SUCCESS_WINDOW_STEPS:
                self._first_steps.append(value)

    @property
    def window(self) -> int:
        """The number of steps over which `means` averages."""
        return len(self._first_steps)

    @property
    def means(self) -> tuple[float, float] | None:
        """The means of the first and of the last `window` steps; None without values."""
        if not self.window:
            return None
        # Both have the same number of steps: each value goes into both, up to the same length.
        return statistics.fmean(self._first_steps), statistics.fmean(self._last_steps)


class RunState:
    """Sums over the steps and faults of a run, and its pace; its size does not grow with their number."""

    def __init__(self, *, on_cpu: bool | None = None) -> None:
        """`on_cpu`: whether inference and learner have no accelerator; by default as torch here."""
        self.on_cpu = torch_is_for_cpu() if on_cpu is None else on_cpu
        self.whole, self.regular = Sums(), Sums()
        """Sums over all steps, and over those after the first that took time, which also fills the pipeline;
        the first counts only while it is the only one."""
        self.pace = Pace()
        self.ledger, self.faults = Ledger(), FaultCounts()
        """The last known counts of trajectories and of faults, those of earlier attempts included."""
        self.last_fault: Fault | None = None
        self.success, self.returns = Ends(), Ends()

    @classmethod
    def of(cls, events: Iterable[StepReport | Fault], *, on_cpu: bool | None = None) -> RunState:
        """Return the state after all of `events`."""
        state = cls(on_cpu=on_cpu)
        for event in events:
            state.add(event)
        return state

    def add(self, event: StepReport | Fault) -> None:
        """Add an ended step or a fault, each kind in its order."""
        if isinstance(event, Fault):
            self.faults.add(event)
            self.last_fault = event
        else:
            self._add_step(event)

    def _add_step(self, report: StepReport) -> None:
        if report.seconds > 0:
            if self.pace.steps == 1:
                self.regular = Sums()
            self.regular.add(report)
            self.pace.add(report)
        self.whole.add(report)
        self.success.add(report.success)
        self.returns.add(report.episode_return)

    @property
    def bound(self) -> Diagnosis | None:
        """The bound of the regular steps; None before a step has ended, or without a record of shares."""
        busiest = self.regular.busiest
        return Diagnosis.of(busiest, self.regular.load, on_cpu=self.on_cpu) if busiest else None

    def summary(self) -> dict[str, Any]:
        """Return the summary of the steps so far, as plain data."""
        whole, bound, ends, ledger = self.whole, self.bound, self.success.means, self.ledger
        return {
            "steps": whole.steps,
            "seconds": whole.seconds,
            "env_steps": whole.env_steps,
            "env_steps_per_second": whole.env_steps_per_second,
            "busy": whole.busy,
            "bound": None if bound is None else {"part": bound.part, "share": bound.share},
            "staleness": whole.staleness.as_dict(),
            "batch_size": whole.batch_size.as_dict(),
            "success": None if ends is None else dict(zip(("first", "last"), ends, strict=True)),
            "trajectories": {
                "produced": ledger.produced,
                "trained": ledger.trained,
                "in_flight": ledger.in_flight,
                "refused": dict(ledger.refused),
            },
            "faults": self.faults.as_dict(),
        }
