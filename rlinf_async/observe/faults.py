"""The faults of a run: the lines of `failures.jsonl`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from rlinf_async.core.failures import FailedEnv
from rlinf_async.observe.spans import Process, kind_and_rank

FaultKind = Literal[
    "env failed",
    "simulator died",
    "simulator hangs",
    "env worker died",
    "inference rank died",
    "node lost",
    "silent",
    "not finite",
    "save failed",
    "stranger",
    "odd policy",
    "odd environments",
    "runs out",
    "run failed",
    "terminated",
    "interrupted",
]
"""The kinds of faults."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a run, with its loss and the reaction of the run: a line of `failures.jsonl`."""

    process: str
    """The name of the process that failed: `env worker 0`."""
    what: FaultKind
    error: str
    """The error or the observation, in a sentence."""
    action: str = "the run goes on"
    """The reaction of the run."""
    shard: int | None = None
    lost: str | None = None
    """The lost work, in words: `a rollout for batch 3`."""
    seconds: float | None = None
    """Seconds until work went on; None if the run has not survived the fault by a restart."""
    trace: str | None = None
    """The traceback of the error."""
    time: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    @property
    def is_of_env(self) -> bool:
        """True if the environments of a shard have failed."""
        return self.what in get_args(FailedEnv)

    @property
    def is_odd(self) -> bool:
        """True for an oddity of policy or environments, which stops nothing."""
        return self.what.startswith("odd ")

    @property
    def restarted_part(self) -> str | None:
        """The part that the run has restarted: env, env_worker, inference; None if it has restarted none."""
        if self.seconds is None:
            return None
        if self.is_of_env:
            return "env"
        kind, _ = kind_and_rank(self.process)
        return {str(Process.ENV): "env_worker", str(Process.INFERENCE): "inference"}.get(kind)

    def __str__(self) -> str:
        """Return the fault in one line: the process, the error, the reaction and the loss."""
        place = self.process + (f", shard {self.shard}" if self.shard is not None else "")
        first_line = self.error.partition("\n")[0]
        took = f" after {self.seconds:g} s" if self.seconds is not None else ""
        loss = f"; lost: {self.lost}" if self.lost else ""
        return f"{place}: {self.what} ({first_line}); {self.action}{took}{loss}"

    def as_dict(self) -> dict[str, Any]:
        """Return the known facts as plain data."""
        return {name: fact for name, fact in asdict(self).items() if fact is not None}


RecordFault = Callable[[Fault], None]
"""`observe.run_dir.RunDir.record`."""


def record_nothing(fault: Fault) -> None:
    """Drop a fault, for runs without a run directory."""
