"""What follows the measurements while a run goes on: the bound on staleness, size and wait of a batch.

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

Guesses only say what is worth a trial; what steps differ too much to show is not tried. A trial changes
one thing, leaves out the steps in which the old setting still shows, and compares seconds per environment
step with those of as many steps just before. It is kept when the gain is larger than it has to be by `SURE`
standard errors, and taken back when it is smaller by as many, or when `MOST` steps have not told. A bound
above the least has to earn its keep, as it costs learning: from time to time it is lowered for a trial, and
stays so unless that has cost `LOSS`. As `LOSS` is less than the `GAIN` that raising has to show, both cannot
hold at once.

It cannot oscillate: for each thing and direction the rest after a trial doubles with every trial, and what
was kept has the opposite direction rest, too. A run of `n` steps so has at most some `log n` trials of each.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Knob = Literal["max_staleness", "max_batch_size", "max_wait_s"]
Verdict = Literal["tried", "kept", "taken back"]

SETTLING = 3
"""Steps after a change, and at the beginning, that show something else than the setting."""
LEAST, MOST = 5, 100
"""Steps on either side of a change that a comparison has."""
WORTH = 0.02
"""A guess below this is worth no trial."""
GAIN, LOSS = 0.01, 0.005
"""What raising has to gain at least, and what lowering the bound may cost."""
SURE = 2.5
"""Standard errors."""
REST = 20
"""Steps from a trial to the next in the same direction; it doubles with each."""
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
class Event:
    """A change, or what became of one."""

    verdict: Verdict
    knob: Knob
    before: float
    after: float
    """What holds from now on."""
    guess: float
    """The gain that seems possible: 0.03 is 3 %."""
    gain: float | None
    """The gain that was seen, once it was."""
    error: float
    """Its standard error."""
    because: str


@dataclass(frozen=True, kw_only=True)
class _Trial:
    change: Event
    limits: Limits
    """Before it."""
    since: Sequence[float]
    """Seconds per environment step before it."""

    @property
    def needs(self) -> float:
        """The gain from which it is kept."""
        return -LOSS if _lowers(self.change) else GAIN


class Adaptation:
    """Decides after each step whether to change something; a pure state machine.

    It never goes beyond `ceiling`, which is what the user allows, nor below a bound of 1 or a batch of
    `least_batch` environments. Of several things worth a trial the one with the largest guess comes first.
    """

    def __init__(
        self, start: Limits, *, ceiling: Limits, least_batch: int, decisions: int, batches: bool = True
    ) -> None:
        """
        Args:
            start: What the run begins with.
            decisions: Of one shard, one after the other, in a global batch.
            batches: Whether inference has batches whose limits can change.
        """
        self.limits = self._start = start
        self._ceiling, self._least_batch = ceiling, min(least_batch, ceiling.max_batch_size)
        self._least_bound = min(1, ceiling.max_staleness)
        self._decisions, self._batches = decisions, batches
        self._window: deque[Measured] = deque(maxlen=MOST)
        self._trial: _Trial | None = None
        self._steps, self._settling = 0, SETTLING
        self._trials: Counter[tuple[Knob, bool]] = Counter()
        self._rests: dict[tuple[Knob, bool], int] = {}

    def step(self, seen: Measured) -> Event | None:
        """Take in a step that has ended; what has changed, if anything. `limits` hold from now on."""
        self._steps += 1
        if self._settling:
            self._settling -= 1
            return None
        self._window.append(seen)
        if len(self._window) < LEAST:
            return None
        return self._judge(self._trial) if self._trial is not None else self._begin()

    def known(self) -> dict[str, Any]:
        """What a later run may go on with, as plain data. A change that is on trial is none yet."""
        return {
            "given": [asdict(self._start), asdict(self._ceiling)],
            "limits": asdict(self.limits if self._trial is None else self._trial.limits),
            "rests": [
                [knob, up, self._trials[knob, up], until - self._steps]
                for (knob, up), until in self._rests.items()
            ],
        }

    def resume(self, known: dict[str, Any]) -> bool:
        """Go on with what `known` has returned; not where the config said something else then.

        Returns:
            Whether it was taken over. The first steps settle, as at any beginning.
        """
        if known["given"] != [asdict(self._start), asdict(self._ceiling)]:
            return False
        self.limits = Limits(**known["limits"])
        for knob, up, trials, rest in known["rests"]:
            self._trials[knob, up], self._rests[knob, up] = trials, self._steps + rest
        return True

    def _judge(self, trial: _Trial) -> Event | None:
        after = _pace(self._window)
        gain, error = _gain(trial.since[-len(after) :], after)  # what was long ago may have other reasons
        kept = gain - SURE * error > trial.needs
        if not kept and gain + SURE * error > trial.needs and len(self._window) < MOST:
            return None
        self._trial = None
        told = replace(trial.change, gain=gain, error=error)
        self._rest(told.knob, up=told.after > told.before)
        if kept:
            self._rest(told.knob, up=told.after < told.before)
            return replace(told, verdict="kept")
        self._set(trial.limits)
        return replace(told, verdict="taken back", before=told.after, after=told.before)

    def _begin(self) -> Event | None:
        ready = [one for one in self._worthwhile() if self._ready(one) and self._can_tell(one)]
        if not ready:
            return None
        change = max(ready, key=lambda one: one.guess)
        self._trial = _Trial(change=change, limits=self.limits, since=_pace(self._window))
        after: dict[str, Any] = {change.knob: change.after}
        self._set(replace(self.limits, **after))
        return change

    def _set(self, limits: Limits) -> None:
        self.limits = limits
        self._settling = SETTLING
        self._window.clear()

    def _rest(self, knob: Knob, *, up: bool) -> None:
        self._rests[knob, up] = self._steps + REST * 2 ** self._trials[knob, up]
        self._trials[knob, up] += 1

    def _ready(self, change: Event) -> bool:
        return self._steps >= self._rests.get((change.knob, change.after > change.before), 0)

    def _can_tell(self, change: Event) -> bool:
        """Whether a trial could show as much as that, if its steps differ as those before it do."""
        error = SURE * math.sqrt(2) * _error(_pace(self._window))
        if _lowers(change):
            return error < LOSS or len(self._window) == MOST
        return error < change.guess - GAIN

    def _worthwhile(self) -> Iterator[Event]:
        """Changes that are worth a trial by what the window shows."""
        changes = [*self._bounds(), *(self._waits() if self._batches else ()), *self._sizes()]
        for change in changes:
            if change.guess >= WORTH or _lowers(change):
                yield change

    def _bounds(self) -> Iterator[Event]:
        bound = self.limits.max_staleness
        waits, held = self._mean("learner_waits"), self._held_back()
        if bound < self._ceiling.max_staleness:
            why = (
                f"the learner waits {waits:.0%} of the time, and every shard is held back {held:.0%} or more"
            )
            yield self._change("max_staleness", bound + 1, min(waits, held), why)
        if bound > self._least_bound:
            yield self._change(
                "max_staleness", bound - 1, 0.0, "a larger bound has to go on paying for itself"
            )

    def _waits(self) -> Iterator[Event]:
        wait, most, forward_s = self.limits.max_wait_s, self._ceiling.max_wait_s, self._mean("forward_s")
        waits, busy = self._mean("learner_waits"), self._mean("inference_busy")
        queued = self._decisions * self._mean("batch_wait_s") / self._mean("seconds")
        if wait > 0:
            why = f"requests wait {queued:.0%} of the time while inference is idle {1 - busy:.0%} of it"
            yield self._change("max_wait_s", 0.0, min(waits, queued, 1 - busy), why)
        longer = min(most, 2 * wait if wait else forward_s / 2, forward_s)
        empty = 1 - self._mean("batch_size") / self.limits.max_batch_size
        if busy >= SHORT and longer > LONGER * wait:
            why = f"inference is busy {busy:.0%} of the time, with passes that are {1 - empty:.0%} full"
            yield self._change("max_wait_s", longer, min(waits, empty, queued), why)

    def _sizes(self) -> Iterator[Event]:
        size, most = self.limits.max_batch_size, self._ceiling.max_batch_size
        waits, busy = self._mean("learner_waits"), self._mean("inference_busy")
        if not self._batches or self._mean("batch_size") < FULL * size:
            return
        if busy < SHORT and size // 2 >= self._least_batch:
            why = f"all shards ask at the same time, and inference is idle {1 - busy:.0%} of it"
            yield self._change("max_batch_size", size // 2, min(waits, busy, 1 - busy), why)
        if busy >= SHORT and size < most:
            why = f"inference is busy {busy:.0%} of the time, with full passes"
            yield self._change("max_batch_size", min(most, 2 * size), min(waits, 0.5), why)

    def _change(self, knob: Knob, after: float, saved: float, because: str) -> Event:
        """`saved` is the share of the time that could be saved."""
        saved = min(saved, 0.9)
        return Event(
            verdict="tried",
            knob=knob,
            before=getattr(self.limits, knob),
            after=after,
            guess=saved / (1 - saved),
            gain=None,
            error=0.0,
            because=because,
        )

    def _mean(self, name: str) -> float:
        return statistics.fmean(getattr(one, name) for one in self._window)

    def _held_back(self) -> float:
        """Of the shard that is held back least, over the window: who is late differs from step to step.

        The least of many measured means is lower than the least of what they are of: by the expected
        deviation of the largest of so many normal ones, at most, and none is more than all on average.
        """
        shards = list(zip(*(one.held_back for one in self._window), strict=True))
        if not shards:
            return 0.0
        extreme = math.sqrt(2 * math.log(len(shards)))
        means = [statistics.fmean(shard) for shard in shards]
        errors = [statistics.stdev(shard) / math.sqrt(len(shard)) for shard in shards]
        least = min(mean + extreme * error for mean, error in zip(means, errors, strict=True))
        return min(least, statistics.fmean(means))


def _lowers(change: Event) -> bool:
    """Whether it is the bound on staleness that is made smaller."""
    return change.knob == "max_staleness" and change.after < change.before


def _pace(steps: Sequence[Measured] | deque[Measured]) -> list[float]:
    """Seconds per environment step of each of `steps`."""
    return [one.seconds / one.env_steps for one in steps]


def _gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """What `after` has gained in throughput, and its standard error."""
    ratio = statistics.fmean(before) / statistics.fmean(after)
    return ratio - 1, ratio * math.hypot(_error(before), _error(after))


def _error(paces: Sequence[float]) -> float:
    """The standard error of their mean, relative to it."""
    mean = statistics.fmean(paces)
    return math.sqrt(math.fsum((pace - mean) ** 2 for pace in paces) / (len(paces) - 1) / len(paces)) / mean
