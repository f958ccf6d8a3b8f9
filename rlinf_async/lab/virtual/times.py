"""The durations of a planned run: environments, forward passes, training, and transport between the loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from rlinf_async.lab.lengths import EpisodeLengths

Seconds = tuple[float, ...]
"""Durations of the environments of a shard between two requests, each on its own core; one number if they are
stepped as one."""


@dataclass(frozen=True, kw_only=True)
class DurationDraws:
    """A distribution of seconds: measured values, or log-normal around a mean."""

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
        """Return the distribution of at least one measured value."""
        mean = float(np.mean(sample))
        return cls(mean=mean, cv=float(np.std(sample)) / mean if mean else 0.0, seen=tuple(sample))

    def stream(self, rng: np.random.Generator, factor: float = 1.0) -> Iterator[float]:
        """Yield draws times `factor`, without end."""
        if self.seen:
            scale = self.mean * factor / max(float(np.mean(self.seen)), 1e-12)
            while True:
                yield from (rng.choice(self.seen, 256) * scale).tolist()
        sigma = math.sqrt(math.log1p(self.cv**2))
        while True:
            yield from (self.mean * factor * rng.lognormal(-sigma * sigma / 2, sigma, 256)).tolist()


@dataclass(frozen=True, kw_only=True)
class SimulatorTimes:
    """Times of environments of a few tasks, dealt out in turn; an environment draws the same in every shard.

    A decision is a chunk of simulator steps. An episode lasts for a rollout, or ends within it; before each
    rollout every environment is reset.
    """

    decision: DurationDraws
    reset: DurationDraws = DurationDraws(mean=0.0)
    tasks: tuple[float, ...] = (1.0,)
    """The time of each task, as a multiple of the mean."""
    vectorised: bool = False
    """True if an env worker's environments are stepped as one, one shard at a time."""
    lengths: EpisodeLengths | None = None
    """Lengths of episodes; None if episodes do not end within a rollout."""
    in_turn: bool = False
    """True if a worker's environments step one after the other, in one process."""
    seed: int = 0


class SimulatorBatch:
    """Environments `first` to `first + size`, which step together, from their first decision on."""

    def __init__(self, times: SimulatorTimes, first: int, size: int, *, horizon: int = 1) -> None:
        """`horizon` is the number of decisions of a whole rollout."""
        self._times, self._size, self._horizon = times, size, horizon
        self._first, self._rollout = first, -1
        self.lengths: tuple[int, ...] = ()
        """Decisions of the episodes of this rollout; above the horizon for an episode without an end."""
        envs = range(first, first + (1 if times.vectorised else size))
        rngs = [np.random.default_rng((times.seed, env)) for env in envs]
        self._own = [self._factor(env) for env in envs]
        self._slower = [1.0 for _ in envs]
        self._decisions = [times.decision.stream(*pair) for pair in zip(rngs, self._own, strict=True)]
        self._resets = [times.reset.stream(np.random.default_rng((times.seed, env, 1))) for env in envs]

    def _factor(self, env: int) -> float:
        tasks = self._times.tasks
        return 1.0 if self._times.vectorised else tasks[env % len(tasks)]

    def take_on(self, first: int, rollout: int) -> None:
        """Take on the tasks of the environments from number `first` on, with their lengths of episodes in
        this `rollout`; other random draws stay the own ones.
        """
        self._first, self._rollout = first, rollout - 1
        factors = (self._factor(first + index) for index in range(len(self._own)))
        self._slower = [factor / own for factor, own in zip(factors, self._own, strict=True)]

    def reset(self) -> Seconds:
        """Begin a rollout."""
        self._rollout += 1
        self.lengths = tuple(map(self._length, range(self._first, self._first + self._size)))
        return self._together([next(stream) for stream in self._resets])

    def step(self) -> Seconds:
        """Take a decision."""
        return self._together(
            [next(stream) * slower for stream, slower in zip(self._decisions, self._slower, strict=True)]
        )

    def _length(self, env: int) -> int:
        if self._times.lengths is None:
            return self._horizon + 1
        return self._times.lengths.draw(env, self._rollout, horizon=self._horizon, seed=self._times.seed)

    def _together(self, each: list[float]) -> Seconds:
        return (sum(each),) if self._times.in_turn else tuple(each)


def _check(times: object, what: str) -> None:
    for item in fields(times):  # type: ignore[arg-type]
        value = getattr(times, item.name)
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{what}.{item.name}={value!r} must be a finite number of at least 0")


@dataclass(frozen=True, kw_only=True)
class PolicyTimes:
    """Times of a forward pass, interpolated between measured sizes."""

    by_size: tuple[tuple[int, float], ...]
    """(environments, seconds), ascending; beyond the last one every environment takes `env_s` more."""
    env_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "policy")
        sizes = [size for size, _ in self.by_size]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"policy.by_size has the sizes {sizes}; they must ascend, from 1 on")

    def forward_s(self, envs: int) -> float:
        """Seconds of a forward pass for `envs` environments."""
        sizes, seconds = zip(*self.by_size, strict=True)
        return float(np.interp(envs, sizes, seconds)) + max(0, envs - sizes[-1]) * self.env_s


@dataclass(frozen=True, kw_only=True)
class TrainingTimes:
    """Times of a learner rank."""

    sample_s: float
    """Seconds to train on one sample once: forward and backward."""
    score_share: float = 1 / 3
    """Seconds of a pass without gradients for the anchor, as a share of `sample_s`."""
    optimizer_step_s: float = 0.0
    """Seconds of an optimizer step."""
    batch_s: float = 0.0
    """Further seconds of a batch: metrics, and the call that begins the next batch."""

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
