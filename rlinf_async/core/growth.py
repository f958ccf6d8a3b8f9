"""What a process holds over time, and whether its growth foretells the end of a run; pure: time is passed in.

A measure foretells an end when it has grown in most of the time that was seen, has not slowed down, and would
reach its limit by the slower of its slopes soon enough. A process that fills its caches and then stands still
foretells nothing, and neither does one whose measure goes up and down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

Sample = tuple[float, float]
"""A time in seconds, and what was held."""

MAX_SAMPLES = 64
"""Samples of a measure that are kept; beyond them every second one is left out, so that all of a run is seen
at some distance."""
LEAST_SAMPLES = 8
LEAST_SPAN_S = 4.0
"""Before so many samples over so many seconds nothing is foretold."""
GROWING_SHARE = 0.6
"""The share of the steps between samples in which a measure that grows has grown."""
SLOWED_FACTOR = 0.5
"""A measure whose slope in the later half is below this share of that in the earlier half has slowed down."""
HORIZON_S = 1800.0
"""An end that is farther away is not foretold: much may change until then."""


def slope(samples: Sequence[Sample]) -> float:
    """What is added in a second: the median over pairs of samples half of the time apart, so that a few that
    are wrong do not count.

    Raises:
        ValueError: there are fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError(f"a slope needs two samples, and there are {len(samples)}")
    half = len(samples) // 2
    pairs = zip(samples, samples[half:], strict=False)
    return median((later - early) / (end - begin) for (begin, early), (end, later) in pairs if end > begin)


def seconds_left(samples: Sequence[Sample], limit: float) -> float | None:
    """Seconds from the last sample until a measure reaches `limit`, by its steady growth; None if it does not
    grow steadily, or not that far within `HORIZON_S`."""
    if len(samples) < LEAST_SAMPLES or samples[-1][0] - samples[0][0] < LEAST_SPAN_S:
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


class Growth:
    """The samples of one measure, thinned out."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._every_s = 0.0

    def add(self, now: float, value: float) -> bool:
        """Take a sample, unless the last one is too close; whether it was taken."""
        if self.samples and now - self.samples[-1][0] < self._every_s:
            return False
        self.samples.append((now, value))
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            span = self.samples[-1][0] - self.samples[0][0]
            self._every_s = span / len(self.samples)
        return True


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a process holds of one thing, and the most that it can hold."""

    value: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """An end that is coming."""

    process: str
    what: str
    held: Held
    per_second: float
    seconds: float
    """Until the limit is reached."""


class Foreteller:
    """Says of all that processes hold what will end the run: once, and again at half of the time left."""

    def __init__(self) -> None:
        self._growth: dict[tuple[str, str], Growth] = {}
        self._said: dict[tuple[str, str], float] = {}

    def look(self, now: float, holdings: Mapping[str, Mapping[str, Held]]) -> list[Foretold]:
        """Take what each process holds now; what is foretold by it that was not said."""
        new = []
        for process, measures in holdings.items():
            for what, held in measures.items():
                key = process, what
                growth = self._growth.setdefault(key, Growth())
                if not growth.add(now, held.value):
                    continue
                left = seconds_left(growth.samples, held.limit)
                if left is None or left > self._said.get(key, float("inf")) / 2:
                    continue
                self._said[key] = left
                later = growth.samples[len(growth.samples) // 2 :]
                new.append(
                    Foretold(process=process, what=what, held=held, per_second=slope(later), seconds=left)
                )
        # What has ended holds nothing, and what takes its name later begins anew.
        present = {(process, what) for process, measures in holdings.items() for what in measures}
        for gone in self._growth.keys() - present:
            del self._growth[gone]
            self._said.pop(gone, None)
        return new
