"""The measures that a run takes of itself: busy shares and spreads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.observe.load import Load


class BusyMeter:
    """The share of time that each of `width` parallel servers spends working rather than waiting.

    Busy blocks of different servers may overlap; those of one server may not.
    """

    def __init__(self, *, width: int = 1, now: Callable[[], float] = time.monotonic) -> None:
        self.width = width
        self._now = now
        self._since = now()
        self._busy = [0.0] * width
        self._open: dict[int, float] = {}

    @contextmanager
    def busy(self, server: int = 0) -> Iterator[None]:
        """Count the time inside the block as work of `server`."""
        self._open[server] = self._now()
        try:
            yield
        finally:
            self._busy[server] += self._now() - self._open.pop(server)

    def pop(self) -> list[float]:
        """Return the busy share of each server since the last call, 0 to 1; an open block counts up to
        now.
        """
        now = self._now()
        busy, elapsed_s = self._busy, now - self._since
        for server, start in self._open.items():
            busy[server] += now - start
            # The rest of an open block belongs to the next call.
            self._open[server] = now
        self._busy, self._since = [0.0] * self.width, now
        return [min(1.0, seconds / elapsed_s) if elapsed_s > 0 else 0.0 for seconds in busy]


@dataclass(frozen=True)
class Shares:
    """Mean and maximum of the busy shares of one kind of process, 0 to 1."""

    mean: float
    most: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> Shares:
        return cls(sum(shares) / len(shares), max(shares)) if shares else cls(0.0, 0.0)


@dataclass
class Spread:
    """Minimum, weighted mean and maximum of a stream of numbers."""

    count: float = 0.0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float, weight: float = 1.0) -> None:
        self.count += weight
        self.total += value * weight
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def merge(self, other: Spread) -> None:
        self.count += other.count
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return `{min, mean, max}`; empty without numbers."""
        return {"min": self.low, "mean": self.mean, "max": self.high} if self.count else {}

    def as_metrics(self, name: str) -> dict[str, float]:
        """Return `{name/min, name/mean, name/max}`; empty without numbers."""
        return {f"{name}/{key}": value for key, value in self.as_dict().items()}


def merged(spreads: Iterable[Spread | None]) -> Spread:
    """Return the spread of all numbers of `spreads`; None has no numbers."""
    whole = Spread()
    for spread in spreads:
        if spread is not None:
            whole.merge(spread)
    return whole


PUBLICATION_METRIC = "async/publication_seconds"
LAG_METRIC = "async/publication/lag_seconds"
FRAMES_DRAWN_METRIC = "async/frames/drawn_seconds"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The measures of a step, for the display and for `metrics.jsonl`."""

    step: int
    total: int
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

    def as_metrics(self) -> dict[str, float]:
        """Return the measures as scalars named `async/...`."""
        metrics = {f"async/busy/{name}": shares.mean for name, shares in self.busy.items()}
        metrics |= {f"async/busiest/{name}": shares.most for name, shares in self.busy.items()}
        metrics |= self.staleness.as_metrics("async/staleness")
        metrics |= self.batch_size.as_metrics("async/batch/size")
        metrics |= self.batch_wait.as_metrics("async/batch/wait_s")
        metrics |= {f"async/restarts/{name}": float(count) for name, count in self.restarts.items()}
        metrics |= {f"async/skipped/{name}": share for name, share in self.skipped.items()}
        metrics |= {} if self.load is None else self.load.as_metrics()
        if self.frames_drawn_s:
            metrics[FRAMES_DRAWN_METRIC] = self.frames_drawn_s
        metrics["async/env_steps"] = float(self.env_steps)
        metrics["async/env_steps_per_second"] = self.env_steps_per_second
        metrics["async/step_seconds"] = self.seconds
        return metrics


def prefixed(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return `{prefix/name: value}`, as plain numbers."""
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}
