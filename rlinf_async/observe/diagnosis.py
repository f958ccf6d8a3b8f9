"""The part of a run that bounds its speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlinf_async.observe.load import Load

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
