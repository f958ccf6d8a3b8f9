"""The durations of environments: the distributions, and the draws of a shard."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWork:
    """The work of the environments of a shard between two requests."""

    each: tuple[float, ...]
    """Seconds of every environment, on a core of its own; one number where they are stepped as one."""
    ends: bool = False
    """True if an episode ends in it, so that its last observation is valued by a second forward pass."""
    device_s: float = 0.0
    """Seconds on the device of the policy, at its end."""


class SimulatorBatch(Protocol):
    """Environments that step together."""

    def reset(self) -> ShardWork:
        """Begin a rollout."""

    def step(self) -> ShardWork:
        """Take a decision."""

    def take_on(self, first: int) -> None:
        """From now on have the tasks of the environments from number `first` on; chance stays their own."""


class Simulators(Protocol):
    """All environments of a run, known by their numbers: an environment draws the same in every shard."""

    @property
    def vectorised(self) -> bool:
        """True if an env worker steps its environments in one process, one shard at a time."""

    def batch(self, first: int, size: int) -> SimulatorBatch:
        """The environments `first` to `first + size`, from their first decision on."""


@dataclass(frozen=True, kw_only=True)
class DurationDraws:
    """Seconds, drawn one by one: from what was measured, or log-normally around a mean."""

    mean: float
    cv: float = 0.0
    """Standard deviation over mean."""
    seen: tuple[float, ...] = ()
    """Measured seconds; if there are any, one of them is drawn, scaled to the mean."""

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("cv", self.cv), *(("seen", one) for one in self.seen)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r} must be a finite number of at least 0")

    @classmethod
    def of(cls, sample: Sequence[float]) -> DurationDraws:
        """Return the distribution of measured seconds, of which there is at least one."""
        mean = float(np.mean(sample))
        return cls(mean=mean, cv=float(np.std(sample)) / mean if mean else 0.0, seen=tuple(sample))

    def stream(self, rng: np.random.Generator, factor: float = 1.0) -> Iterator[float]:
        """Endless draws, `factor` times as long."""
        if self.seen:
            scale = self.mean * factor / max(float(np.mean(self.seen)), 1e-12)
            while True:
                yield from (rng.choice(self.seen, 256) * scale).tolist()
        sigma = math.sqrt(math.log1p(self.cv**2))
        while True:
            yield from (self.mean * factor * rng.lognormal(-sigma * sigma / 2, sigma, 256)).tolist()


@dataclass(frozen=True, kw_only=True)
class SimulatorTimes:
    """Environments of a few tasks, dealt out by turns; fills `Simulators`.

    A decision is a chunk of simulator steps. Episodes last for a rollout, and every environment is reset
    before it, unless `episode` says after how many decisions they end on average: then on the spot.
    """

    decision: DurationDraws
    reset: DurationDraws = DurationDraws(mean=0.0)
    tasks: tuple[float, ...] = (1.0,)
    """The time of each task, as a multiple of the mean."""
    episode: float = 0.0
    vectorised: bool = False
    """True if a worker's environments are stepped as one: in `decision`, and `decision_env_s` for each."""
    decision_env_s: float = 0.0
    in_turn: bool = False
    """True if a worker's environments step one after the other, in one process."""
    device_s: float = 0.0
    """Seconds that an environment's decision takes on the device of the policy."""
    seed: int = 0

    def batch(self, first: int, size: int) -> SimulatorBatch:
        return _Batch(self, first, size)


class _Batch:
    """Fills `SimulatorBatch`."""

    def __init__(self, times: SimulatorTimes, first: int, size: int) -> None:
        self._times, self._size = times, size
        self._envs = envs = range(first, first + (1 if times.vectorised else size))
        rngs = [np.random.default_rng((times.seed, env)) for env in envs]
        self._own = [self._factor(env) for env in envs]
        self._slower = [1.0 for _ in envs]
        self._decisions = [times.decision.stream(*pair) for pair in zip(rngs, self._own, strict=True)]
        self._resets = [times.reset.stream(np.random.default_rng((times.seed, env, 1))) for env in envs]
        self._ends = np.random.default_rng((times.seed, first, 2))

    def _factor(self, env: int) -> float:
        tasks = self._times.tasks
        return 1.0 if self._times.vectorised else tasks[env % len(tasks)]

    def take_on(self, first: int) -> None:
        factors = (self._factor(first + index) for index in range(len(self._envs)))
        self._slower = [factor / own for factor, own in zip(factors, self._own, strict=True)]

    def reset(self) -> ShardWork:
        if self._times.episode:
            return ShardWork(each=(0.0,))
        return self._stint([next(stream) for stream in self._resets], ends=False, device_s=0.0)

    def step(self) -> ShardWork:
        times = self._times
        each = [next(stream) * slower for stream, slower in zip(self._decisions, self._slower, strict=True)]
        if times.vectorised:
            each[0] += self._size * times.decision_env_s
        ends = False
        if times.episode:
            for index in np.flatnonzero(self._ends.random(len(each)) < 1.0 / times.episode):
                each[index] += next(self._resets[index])
                ends = True
        return self._stint(each, ends=ends, device_s=times.device_s * self._size)

    def _stint(self, each: list[float], *, ends: bool, device_s: float) -> ShardWork:
        if self._times.in_turn:
            each = [sum(each)]
        return ShardWork(each=tuple(each), ends=ends, device_s=device_s)
