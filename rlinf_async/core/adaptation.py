"""What follows the measurements while a run goes on: the bound on staleness, size and wait of a batch.

Theory of operation. Guesses (`core.guesses`) only say what is worth a trial; what steps differ too much to
show is not tried. A trial changes one thing, leaves out the steps in which the old setting still shows, and
compares seconds per environment step with those of as many steps just before. It is kept when the gain is
larger than it has to be by `SURE` standard errors, and taken back when it is smaller by as many, or when
`MOST` steps have not told. A bound above the least has to earn its keep, as it costs learning: from time to
time it is lowered for a trial, and stays so unless that has cost `LOSS`. As `LOSS` is less than the `GAIN`
that raising has to show, both cannot hold at once.

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

from rlinf_async.core.guesses import Guess, Guesses, Knob, Limits, Measured, Scope, standard_error

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
"""Steps from the end of a trial to the next in the same direction; it doubles with each."""


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
    change: Guess
    limits: Limits
    """Before it."""
    since: Sequence[float]
    """Seconds per environment step before it."""

    @property
    def needs(self) -> float:
        """The gain from which it is kept."""
        return -LOSS if self.change.lowers_bound else GAIN

    def told(self, verdict: Verdict, gain: float | None = None, error: float = 0.0) -> Event:
        """What there is to say of it; what is taken back has gone from what was tried to what was before."""
        change = self.change
        ends = (change.before, change.after)
        before, after = reversed(ends) if verdict == "taken back" else ends
        return Event(
            verdict=verdict,
            knob=change.knob,
            before=before,
            after=after,
            guess=change.gain,
            gain=gain,
            error=error,
            because=change.because,
        )


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
        self._scope = Scope(
            ceiling=ceiling,
            least_bound=min(1, ceiling.max_staleness),
            least_batch=min(least_batch, ceiling.max_batch_size),
            decisions=decisions,
            batches=batches,
        )
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
            "given": [asdict(self._start), asdict(self._scope.ceiling)],
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
        if known["given"] != [asdict(self._start), asdict(self._scope.ceiling)]:
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
        up = trial.change.after > trial.change.before
        self._rest(trial.change.knob, up=up)
        if kept:
            self._rest(trial.change.knob, up=not up)
            return trial.told("kept", gain, error)
        self._set(trial.limits)
        return trial.told("taken back", gain, error)

    def _begin(self) -> Event | None:
        ready = [one for one in self._worthwhile() if self._ready(one) and self._can_tell(one)]
        if not ready:
            return None
        change = max(ready, key=lambda one: one.gain)
        self._trial = _Trial(change=change, limits=self.limits, since=_pace(self._window))
        after: dict[str, Any] = {change.knob: change.after}
        self._set(replace(self.limits, **after))
        return self._trial.told("tried")

    def _set(self, limits: Limits) -> None:
        self.limits = limits
        self._settling = SETTLING
        self._window.clear()

    def _rest(self, knob: Knob, *, up: bool) -> None:
        self._rests[knob, up] = self._steps + REST * 2 ** self._trials[knob, up]
        self._trials[knob, up] += 1

    def _ready(self, change: Guess) -> bool:
        return self._steps >= self._rests.get((change.knob, change.after > change.before), 0)

    def _can_tell(self, change: Guess) -> bool:
        """Whether a trial could show as much as that, if its steps differ as those before it do."""
        error = SURE * math.sqrt(2) * _error(_pace(self._window))
        if change.lowers_bound:
            return error < LOSS or len(self._window) == MOST
        return error < change.gain - GAIN

    def _worthwhile(self) -> Iterator[Guess]:
        """Changes that are worth a trial by what the window shows."""
        guesses = Guesses(scope=self._scope, limits=self.limits, window=tuple(self._window))
        return (one for one in guesses if one.gain >= WORTH or one.lowers_bound)


def _pace(steps: Sequence[Measured] | deque[Measured]) -> list[float]:
    """Seconds per environment step of each of `steps`."""
    return [one.seconds / one.env_steps for one in steps]


def _gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """What `after` has gained in throughput, and its standard error."""
    ratio = statistics.fmean(before) / statistics.fmean(after)
    return ratio - 1, ratio * math.hypot(_error(before), _error(after))


def _error(paces: Sequence[float]) -> float:
    """The standard error of their mean, relative to it."""
    return standard_error(paces) / statistics.fmean(paces)
