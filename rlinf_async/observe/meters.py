"""The measures that a run takes of itself: busy shares and spreads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
        # Comparisons: with calls of `min` and `max` this took twice as long.
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def merge(self, other: Spread) -> None:
        self.count += other.count
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def mean_since(self, earlier: Spread) -> float:
        """Return the mean of the numbers after those of `earlier`, none below 0; that of all if some of
        `earlier` are missing here, as after the death of a process that held them."""
        count, total = self.count - earlier.count, self.total - earlier.total
        return total / count if count > 0 and total >= 0 else self.mean

    def as_dict(self) -> dict[str, float]:
        """Return `{min, mean, max}`; empty without numbers."""
        return {"min": self.low, "mean": self.mean, "max": self.high} if self.count else {}

    def as_metrics(self, name: str) -> dict[str, float]:
        """Return `{name/min, name/mean, name/max}`; empty without numbers."""
        return {f"{name}/{key}": value for key, value in self.as_dict().items()}

    @classmethod
    def from_metrics(cls, line: Mapping[str, float], name: str, *, count: float) -> Spread:
        """Return the spread that `as_metrics` has written, as that of `count` numbers; empty if it is not
        there.
        """
        if (mean := line.get(f"{name}/mean")) is None:
            return cls()
        return cls(count, mean * count, line.get(f"{name}/min", mean), line.get(f"{name}/max", mean))


def merged(spreads: Iterable[Spread | None]) -> Spread:
    """Return the spread of all numbers of `spreads`; None has no numbers."""
    whole = Spread()
    for spread in spreads:
        if spread is not None:
            whole.merge(spread)
    return whole


def prefixed(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return `{prefix/name: value}`, as plain numbers."""
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}
