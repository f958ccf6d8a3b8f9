"""The times of the first rollouts of an env worker's shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ShardTimes:
    """What the shards of one env worker took in their first rollouts, in seconds."""

    resets: Sequence[float]
    """The reset of each shard."""
    steps: Sequence[Sequence[float]]
    """The step of each decision, of each shard, in the order of the shards."""
    decision_s: float
    """From one decision of a shard to the next: its step, its answer, and all waits."""
    cpu_s: float
    """The CPU time of the env worker's process per decision of a shard."""

    def __post_init__(self) -> None:
        if len(self.resets) != len(self.steps):
            raise ValueError(f"{len(self.resets)} resets and {len(self.steps)} shards must be as many")

    @property
    def complete(self) -> bool:
        """True if every shard has played."""
        return bool(self.steps) and all(self.steps) and min(self.decision_s, self.cpu_s) > 0

    @property
    def step_s(self) -> float:
        """The mean step of a shard."""
        return mean([second for shard in self.steps for second in shard])


class FirstRollouts:
    """Collects the `ShardTimes` of an env worker with `shards` shards; pure: the caller passes the time."""

    def __init__(self, shards: int) -> None:
        self._resets: list[list[float]] = [[] for _ in range(shards)]
        self._steps: list[list[float]] = [[] for _ in range(shards)]
        self._ends = [0.0] * shards
        self._spent_s = 0.0
        """Seconds of all shards from one decision to the next, within their first rollouts."""
        self._decisions = 0

    def reset(self, shard: int, seconds: float, now: float) -> None:
        """Add a reset, which begins a rollout; only the first rollout of a shard counts."""
        if len(self._resets[shard]) < 2:
            self._resets[shard].append(seconds)
        self._ends[shard] = now

    def step(self, shard: int, seconds: float, now: float) -> None:
        """Add the step of a decision."""
        self._decisions += 1
        if len(self._resets[shard]) == 1:
            self._steps[shard].append(seconds)
            self._spent_s += now - self._ends[shard]
            self._ends[shard] = now

    def times(self, cpu_s: float) -> ShardTimes:
        """Return the times up to now; `cpu_s` is the CPU time of the env worker's process since its start."""
        counted = sum(map(len, self._steps))
        return ShardTimes(
            resets=[resets[0] if resets else 0.0 for resets in self._resets],
            steps=[list(steps) for steps in self._steps],
            decision_s=self._spent_s / counted if counted else 0.0,
            cpu_s=cpu_s / self._decisions if self._decisions else 0.0,
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)
