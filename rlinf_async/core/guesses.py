"""What a change while a run goes on could gain, by what has been measured.

Theory of operation. The learner of a run trains what simulators and inference bring. The time in which it
waits for trajectories is all that anything on their side can gain, so no guess is more than that, and a run
whose learner never waits is left alone. Within it,

    a larger bound      evens out who is late. It gains only where the simulators are early at other times:
                        about what the shard that the gate holds back least stands there
    a shorter wait      saves what requests wait for company while inference is idle
    a longer wait       makes fewer, fuller passes where inference is what is short; at most what
                        requests stand in its queue
    a smaller batch     has one half of the shards act while the other steps, where all of them ask at once,
                        so that simulators and inference wait for each other; at most the smaller part
    a larger batch      takes that back where inference has become short

A smaller bound gains nothing: it is tried since a larger one costs learning (see `core.adaptation`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Knob = Literal["max_staleness", "max_batch_size", "max_wait_s"]

SHORT = 0.8
"""Inference that is busy for so much of the time, or more, is what is short."""
LONGER = 1.1
"""A wait that is less than so many times as long is the same: how long passes take varies."""
FULL = 0.75
"""Passes that are as full as that hold whoever asks."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may change without a restart."""

    max_staleness: int
    max_batch_size: int
    max_wait_s: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step, in seconds and shares of its time."""

    seconds: float
    env_steps: int
    learner_waits: float
    """The share in which the learner had nothing to train on."""
    held_back: Sequence[float]
    """The share in which each shard stood at the gate."""
    inference_busy: float
    batch_size: float
    """Environments in a forward pass."""
    batch_wait_s: float
    """What the oldest request of a forward pass had waited."""
    forward_s: float
    """A forward pass."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A change, and what it seems to gain."""

    knob: Knob
    before: float
    after: float
    gain: float
    """Of throughput: 0.03 is 3 %."""
    because: str

    @property
    def lowers_bound(self) -> bool:
        """Whether it is the bound on staleness that is made smaller."""
        return self.knob == "max_staleness" and self.after < self.before


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How far a run may change, and what it consists of."""

    ceiling: Limits
    """What the user allows."""
    least_bound: int
    least_batch: int
    decisions: int
    """Of one shard, one after the other, in a global batch."""
    batches: bool
    """Whether inference has batches whose limits can change."""


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Of the changes from `limits`, by the steps that `window` has measured under them."""

    scope: Scope
    limits: Limits
    window: Sequence[Measured]

    def __iter__(self) -> Iterator[Guess]:
        yield from self._bounds()
        if self.scope.batches:
            yield from self._waits()
            yield from self._sizes()

    def _bounds(self) -> Iterator[Guess]:
        bound = self.limits.max_staleness
        waits, held = self._mean("learner_waits"), self._held_back()
        if bound < self.scope.ceiling.max_staleness:
            why = (
                f"the learner waits {waits:.0%} of the time, and every shard is held back {held:.0%} or more"
            )
            yield self._change("max_staleness", bound + 1, min(waits, held), why)
        if bound > self.scope.least_bound:
            yield self._change(
                "max_staleness", bound - 1, 0.0, "a larger bound has to go on paying for itself"
            )

    def _waits(self) -> Iterator[Guess]:
        wait, most, forward_s = self.limits.max_wait_s, self.scope.ceiling.max_wait_s, self._mean("forward_s")
        waits, busy = self._mean("learner_waits"), self._mean("inference_busy")
        queued = self.scope.decisions * self._mean("batch_wait_s") / self._mean("seconds")
        if wait > 0:
            why = f"requests wait {queued:.0%} of the time while inference is idle {1 - busy:.0%} of it"
            yield self._change("max_wait_s", 0.0, min(waits, queued, 1 - busy), why)
        longer = min(most, 2 * wait if wait else forward_s / 2, forward_s)
        empty = 1 - self._mean("batch_size") / self.limits.max_batch_size
        if busy >= SHORT and longer > LONGER * wait:
            why = f"inference is busy {busy:.0%} of the time, with passes that are {1 - empty:.0%} full"
            yield self._change("max_wait_s", longer, min(waits, empty, queued), why)

    def _sizes(self) -> Iterator[Guess]:
        size, most = self.limits.max_batch_size, self.scope.ceiling.max_batch_size
        waits, busy = self._mean("learner_waits"), self._mean("inference_busy")
        if self._mean("batch_size") < FULL * size:
            return
        if busy < SHORT and size // 2 >= self.scope.least_batch:
            why = f"all shards ask at the same time, and inference is idle {1 - busy:.0%} of it"
            yield self._change("max_batch_size", size // 2, min(waits, busy, 1 - busy), why)
        if busy >= SHORT and size < most:
            why = f"inference is busy {busy:.0%} of the time, with full passes"
            yield self._change("max_batch_size", min(most, 2 * size), min(waits, 0.5), why)

    def _change(self, knob: Knob, after: float, saved: float, because: str) -> Guess:
        """`saved` is the share of the time that could be saved."""
        saved = min(saved, 0.9)
        before = getattr(self.limits, knob)
        return Guess(knob=knob, before=before, after=after, gain=saved / (1 - saved), because=because)

    def _mean(self, name: str) -> float:
        return statistics.fmean(getattr(one, name) for one in self.window)

    def _held_back(self) -> float:
        """Of the shard that is held back least, over the window: who is late differs from step to step.

        The least of many measured means is lower than the least of what they are of: by the expected
        deviation of the largest of so many normal ones, at most, and none is more than all on average.
        """
        shards = list(zip(*(one.held_back for one in self.window), strict=True))
        if not shards:
            return 0.0
        extreme = math.sqrt(2 * math.log(len(shards)))
        means = [statistics.fmean(shard) for shard in shards]
        least = min(mean + extreme * standard_error(shard) for mean, shard in zip(means, shards, strict=True))
        return min(least, statistics.fmean(means))


def standard_error(values: Sequence[float]) -> float:
    """That of the mean of `values`, which are two at least."""
    mean, count = statistics.fmean(values), len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
