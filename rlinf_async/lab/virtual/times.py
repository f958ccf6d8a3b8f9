"""The durations of everything but environments: service times of a planned run, in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from rlinf_async.lab.virtual.simulators import SimulatorTimes


def _check(times: object, what: str) -> None:
    for item in fields(times):  # type: ignore[arg-type]
        value = getattr(times, item.name)
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{what}.{item.name}={value!r} must be a finite number of at least 0")


@dataclass(frozen=True, kw_only=True)
class PolicyTimes:
    """A forward pass for `n` environments: `fixed_s + n * env_s`, or between what was measured `by_size`."""

    fixed_s: float = 0.0
    env_s: float = 0.0
    by_size: tuple[tuple[int, float], ...] = ()
    """(environments, seconds), ascending; beyond the last one every environment takes `env_s` more."""

    def __post_init__(self) -> None:
        _check(self, "policy")
        sizes = [size for size, _ in self.by_size]
        if sizes != sorted(set(sizes)) or any(size < 1 for size in sizes):
            raise ValueError(f"policy.by_size has the sizes {sizes}; they must ascend, from 1 on")

    def forward_s(self, envs: int) -> float:
        """Seconds of a forward pass for `envs` environments."""
        if not self.by_size:
            return self.fixed_s + envs * self.env_s
        sizes, seconds = zip(*self.by_size, strict=True)
        return float(np.interp(envs, sizes, seconds)) + max(0, envs - sizes[-1]) * self.env_s


@dataclass(frozen=True, kw_only=True)
class TrainingTimes:
    """A learner rank."""

    sample_s: float
    """Training on one sample, once: forward and backward."""
    score_share: float = 1 / 3
    """A pass without gradients, which anchors samples, as a share of that."""
    optimizer_step_s: float = 0.0
    """An optimizer step."""
    batch_s: float = 0.0
    """Seconds of a batch besides all that: metrics, the call that begins the next."""
    fetch_s: float = 0.0
    """Seconds for which a sample is in the one process that all rollouts pass on their way to a learner, one
    rank after the other; 0 where they pass none."""

    def __post_init__(self) -> None:
        _check(self, "training")

    def pass_s(self, samples: int) -> float:
        """Seconds of a pass without gradients, which gives samples their anchor."""
        return samples * self.sample_s * self.score_share


@dataclass(frozen=True, kw_only=True)
class WayTimes:
    """Times between the loops: seconds that a record is under way, or that one process has for it."""

    request_s: float = 0.0
    """Seconds from an env worker to inference and back, besides the wait for a batch and the forward pass."""
    worker_s: float = 0.0
    """Seconds of the env worker's process for each decision of a shard, half of it with the request and
    half with the answer; one shard at a time."""
    put_s: float = 0.0
    """From an env worker to the buffer, for each rollout."""

    def __post_init__(self) -> None:
        _check(self, "way")


@dataclass(frozen=True, kw_only=True)
class WeightTimes:
    """New weights: `copy_s` of the learner, `send_s` under way, `load_s` of an inference rank."""

    copy_s: float = 0.0
    send_s: float = 0.0
    load_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "weights")


@dataclass(frozen=True, kw_only=True)
class Times:
    """Everything that a planned run takes its time for."""

    simulators: SimulatorTimes
    policy: PolicyTimes
    training: TrainingTimes
    way: WayTimes = field(default_factory=WayTimes)
    weights: WeightTimes = field(default_factory=WeightTimes)
    cores: int = 0
    """Cores of an env worker, which its environments share; 0: as many as are wanted."""
    decision_steps: int = 1
    """Environment steps in one decision."""


def table(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Means by size, ascending, of measured (environments, seconds)."""
    sizes = sorted({size for size, _ in points})
    return tuple((size, float(np.mean([s for n, s in points if n == size]))) for size in sizes)
