"""The bound of a run: its busiest part, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SATURATED_SHARE = 0.7
"""A part that is busy for a larger share of the time leaves little for the others to wait for."""

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

    Every environment contributes equally to a batch, so of the shards the busiest counts, not their mean.
    The share is also the overlap efficiency: the time of the busiest part over the time that it took.
    """

    part: str
    share: float

    @classmethod
    def of(cls, busiest: Mapping[str, float]) -> Diagnosis:
        """`busiest`: the shares of the busiest processes, by the names of `BOUND_PHRASES`."""
        part = max(busiest, key=lambda name: busiest[name])
        return cls(part, busiest[part])

    @property
    def saturated(self) -> bool:
        return self.share >= SATURATED_SHARE

    def sentence(self, what: str = "this run") -> str:
        verb, who = BOUND_PHRASES[self.part]
        share = f"{who} {self.share:.0%} of the time"
        if self.saturated:
            return f"{verb} {what}: {share}."
        return f"Nothing is busy all the time in {what}: of {PART_NAMES[self.part]}, {share}."
