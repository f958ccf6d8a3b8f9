"""Forecasts that a process will exhaust a resource (memory, files, disk) and end the run; time is passed in.

The end is forecast when the usage has grown in most of the time observed, has not slowed down, and would
reach its limit within `HORIZON_S` by the slower of its two slopes. So there is no forecast for a process that
fills its caches and then stays level, nor for usage that goes up and down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

Sample = tuple[float, float]
"""(time in seconds, usage)."""

MAX_SAMPLES = 64
"""Most samples of a resource that are kept. Beyond them every second one is dropped, so that the samples
still span the whole run."""
LEAST_SAMPLES = 8
LEAST_SPAN_S = 4.0
"""There is no forecast from fewer samples, or from fewer seconds."""
GROWING_SHARE = 0.6
"""Usage grows if it has risen in at least this share of the steps between samples."""
SLOWED_FACTOR = 0.5
"""Growth has slowed down if the slope of the later half is below this share of that of the earlier half."""
HORIZON_S = 1800.0
"""A more distant end is not forecast: much may change until then."""


def slope(samples: Sequence[Sample]) -> float:
    """Growth per second: the median over pairs of samples that are half of the list apart, against outliers.

    Raises:
        ValueError: there are fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError(f"a slope needs two samples, and there are {len(samples)}")
    half = len(samples) // 2
    pairs = zip(samples, samples[half:], strict=False)
    return median((later - early) / (end - begin) for (begin, early), (end, later) in pairs if end > begin)


def seconds_left(samples: Sequence[Sample], limit: float) -> float | None:
    """Seconds from the last sample until the usage reaches `limit`; None if it does not grow steadily, or
    does not reach the limit within `HORIZON_S`."""
    if not _suffices(samples):
        return None
    steps = [later - early for (_, early), (_, later) in pairwise(samples)]
    if sum(step > 0 for step in steps) < GROWING_SHARE * len(steps):
        return None
    middle = len(samples) // 2
    early, late = slope(samples[: middle + 1]), slope(samples[middle:])
    if late <= 0 or late < SLOWED_FACTOR * early:
        return None
    left = max(0.0, limit - samples[-1][1]) / min(late, max(early, SLOWED_FACTOR * late))
    return left if left <= HORIZON_S else None


def _suffices(samples: Sequence[Sample]) -> bool:
    return len(samples) >= LEAST_SAMPLES and samples[-1][0] - samples[0][0] >= LEAST_SPAN_S


class Growth:
    """The samples of the usage of one resource; see `MAX_SAMPLES`."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._every_s = 0.0

    def add(self, now: float, value: float) -> bool:
        """Add a sample unless the last one is too recent; return True if it was added."""
        if self.samples and now - self.samples[-1][0] < self._every_s:
            return False
        self.samples.append((now, value))
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            span = self.samples[-1][0] - self.samples[0][0]
            self._every_s = span / len(self.samples)
        return True

    @property
    def per_second(self) -> float | None:
        """The slope of the later half; None with too few samples, or too short a time, for a forecast."""
        if not _suffices(self.samples):
            return None
        return slope(self.samples[len(self.samples) // 2 :])


@dataclass(frozen=True, kw_only=True)
class Held:
    """The amount of one resource that a process holds, and the most that it can hold."""

    value: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """A forecast that `process` will exhaust the resource `what`."""

    process: str
    what: str
    held: Held
    per_second: float
    seconds: float
    """Seconds until the limit is reached."""


class Foreteller:
    """Forecasts for all processes and resources: each is returned once, and again when half of its time is
    left."""

    def __init__(self) -> None:
        self._growth: dict[tuple[str, str], Growth] = {}
        self._seconds_returned: dict[tuple[str, str], float] = {}

    def per_second(self, process: str, what: str) -> float | None:
        """The growth of a resource of a process, per second; None if it was seen for too short a time."""
        growth = self._growth.get((process, what))
        return None if growth is None else growth.per_second

    def look(self, now: float, holdings: Mapping[str, Mapping[str, Held]]) -> list[Foretold]:
        """Add the usage of each process by resource; return the new forecasts."""
        new = []
        for process, measures in holdings.items():
            for what, held in measures.items():
                key = process, what
                growth = self._growth.setdefault(key, Growth())
                if not growth.add(now, held.value):
                    continue
                left = seconds_left(growth.samples, held.limit)
                if left is None or left > self._seconds_returned.get(key, float("inf")) / 2:
                    continue
                self._seconds_returned[key] = left
                per_second = growth.per_second or 0.0
                new.append(
                    Foretold(process=process, what=what, held=held, per_second=per_second, seconds=left)
                )
        # Forget processes that have ended: a later process of the same name starts without samples.
        present = {(process, what) for process, measures in holdings.items() for what in measures}
        for absent in self._growth.keys() - present:
            del self._growth[absent]
            self._seconds_returned.pop(absent, None)
        return new
