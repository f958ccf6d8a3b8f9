"""The events that a run records, each of one type, with the names of its fields in the files.

`run_dir.RunDir` writes them, `reading.run_reader.RunReader` turns lines into them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf_async.observe.faults import Fault, FaultKind
from rlinf_async.observe.load import Load
from rlinf_async.observe.meters import Shares, Spread
from rlinf_async.observe.spans import Process

PUBLICATION_METRIC = "async/publication_seconds"
LAG_METRIC = "async/publication/lag_seconds"
FRAMES_DRAWN_METRIC = "async/frames/drawn_seconds"
SECONDS_METRIC = "async/step_seconds"
ENV_STEPS_METRIC = "async/env_steps"
SUCCESS_METRIC, RETURN_METRIC = "env/success_once", "env/return"
BUSY_METRIC = "async/busy/{}"
PARTS = ("env", "inference", "learner")
"""The parts of a run with busy shares."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The measures of a trained step: those of its line in `metrics.jsonl` that are named `async/...`."""

    step: int
    total: int
    """The last step of the run; 0 where it is not known."""
    seconds: float
    env_steps: int
    """Environment steps that were trained for the first time in this step."""
    episode_return: float | None
    success: float | None
    busy: dict[str, Shares]
    """Busy shares of env shards, inference ranks and learner ranks."""
    staleness: Spread
    batch_size: Spread
    batch_wait: Spread
    publication: float = 0.0
    """The share of the time that the learner spent on publication instead of training."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts during this step, by the part that was restarted: env, env_worker, inference."""
    skipped: Mapping[str, float] = field(default_factory=dict)
    """Shares of the synchronous loop's work that were left out: env_steps, decisions, frames."""
    load: Load | None = None
    """Busy processor cores of the machine during the step; None where the run's own are unknown."""
    frames_drawn_s: float = 0.0
    """Seconds of simulators that drawing frames took; 0 where environments do not measure it."""

    @property
    def busiest(self) -> dict[str, float]:
        """The busy share of the busiest process of each kind, and the share of publication."""
        return {name: shares.most for name, shares in self.busy.items()} | {"publication": self.publication}

    @property
    def env_steps_per_second(self) -> float:
        return self.env_steps / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def from_metrics(cls, line: Mapping[str, float]) -> StepReport:
        """Return the report of a line of metrics; a measure that it lacks is 0, empty or None.

        A line has no counts for means: staleness counts each environment step, batches count by time.
        """
        seconds, env_steps = line.get(SECONDS_METRIC, 0.0), line.get(ENV_STEPS_METRIC, 0.0)
        means = {name: line[BUSY_METRIC.format(name)] for name in PARTS if BUSY_METRIC.format(name) in line}
        publication = min(1.0, line.get(PUBLICATION_METRIC, 0.0) / seconds) if seconds > 0 else 0.0
        return cls(
            step=int(line["step"]),
            total=0,
            seconds=seconds,
            env_steps=int(env_steps),
            episode_return=line.get(RETURN_METRIC),
            success=line.get(SUCCESS_METRIC),
            busy={
                name: Shares(mean, line.get(f"async/busiest/{name}", mean)) for name, mean in means.items()
            },
            staleness=Spread.from_metrics(line, "async/staleness", count=env_steps),
            batch_size=Spread.from_metrics(line, "async/batch/size", count=seconds),
            batch_wait=Spread.from_metrics(line, "async/batch/wait_s", count=seconds),
            publication=publication,
            load=Load.from_metrics(line),
        )

    def as_metrics(self) -> dict[str, float]:
        """Return the measures as scalars named `async/...`."""
        metrics = {BUSY_METRIC.format(name): shares.mean for name, shares in self.busy.items()}
        metrics |= {f"async/busiest/{name}": shares.most for name, shares in self.busy.items()}
        metrics |= self.staleness.as_metrics("async/staleness")
        metrics |= self.batch_size.as_metrics("async/batch/size")
        metrics |= self.batch_wait.as_metrics("async/batch/wait_s")
        metrics |= {f"async/restarts/{name}": float(count) for name, count in self.restarts.items()}
        metrics |= {f"async/skipped/{name}": share for name, share in self.skipped.items()}
        metrics |= {} if self.load is None else self.load.as_metrics()
        if self.frames_drawn_s:
            metrics[FRAMES_DRAWN_METRIC] = self.frames_drawn_s
        metrics[ENV_STEPS_METRIC] = float(self.env_steps)
        metrics["async/env_steps_per_second"] = self.env_steps_per_second
        metrics[SECONDS_METRIC] = self.seconds
        return metrics


@dataclass(frozen=True, kw_only=True)
class Status:
    """The activity of a run at one moment: the content of `status.json`."""

    time: float
    """Seconds since the epoch."""
    step: int
    total: int
    still_s: float = 0.0
    """Seconds since a span of any process has ended."""
    driver: int | None = None
    """The driver's process number."""
    machine: str = ""
    """The driver's machine, by `wire.memory.machine`."""
    processes: dict[str, Any] = field(default_factory=dict)
    """By name, the result of `RunProcess.doing`; None for a process that does not answer."""
    holds: dict[str, Any] = field(default_factory=dict)
    """The resources of each process; see `observe.resources`."""
    foretold: dict[str, Any] = field(default_factory=dict)
    """Sentences about resources that will run out."""


How = Literal["failed", "interrupted", "terminated"]
FAULT_OF_ENDING: dict[How, FaultKind] = {
    "failed": "run failed",
    "interrupted": "interrupted",
    "terminated": "terminated",
}
ENDING_WORDS = {
    "failed": "has failed",
    "interrupted": "was interrupted",
    "terminated": "was asked to end, and has ended",
}
"""The words for the end of a run before its last step, by `How`."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a run before its last step, in the parts of a sentence: `who why; what_next`."""

    who: str
    """The process: its role, its rank, its number and its node."""
    why: str
    what_next: str
    how: How = "failed"
    status: int = 1
    """The exit status of the command."""
    process: str = str(Process.DRIVER)
    """The name of the process in the records of the run."""
    lacks_memory: bool = False
    """True if the process had no memory left."""

    def __str__(self) -> str:
        return f"{self.who} {self.why}; {self.what_next}"

    def fault(self, trace: str | None) -> Fault:
        """Return the fault that has ended the run."""
        what, error = FAULT_OF_ENDING[self.how], f"{self.who} {self.why}"
        return Fault(process=self.process, what=what, error=error, action="the run ends", trace=trace)


@dataclass
class FaultCounts:
    """Counts of the faults of a run, and their cost."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Faults, by `FaultKind`."""
    restarts: Counter[str] = field(default_factory=Counter)
    """Faults that the run survived, by `Fault.restarted_part`."""
    seconds: float = 0.0
    """The sum of the seconds until each restarted part went on; the times may overlap."""

    def add(self, fault: Fault) -> None:
        """Count a fault."""
        self.kinds[fault.what] += 1
        self.seconds += fault.seconds or 0.0
        if fault.restarted_part is not None:
            self.restarts[fault.restarted_part] += 1

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> FaultCounts:
        """Count faults."""
        counts = cls()
        # One at a time: the record may be larger than the memory that is left at the end of a run.
        for fault in faults:
            counts.add(fault)
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "kinds": dict(self.kinds),
            "restarts": dict(self.restarts),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        """Return the counts in words: `3 faults: env failed 2, silent 1`."""
        counts = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        count = self.kinds.total()
        return f"{count} {'fault' if count == 1 else 'faults'}: {counts}"
