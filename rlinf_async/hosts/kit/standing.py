"""Environments that leave single simulators alone after the end of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_async.hosts.kit.playing import Playing

LET_PLAY_METHOD = "let_play"
"""A method of environments that step single simulators: those at the given numbers are stepped from now on,
all of them with None; the others repeat their last output. See docs/extending.md."""


def let_play(env: object, playing: Playing | None) -> bool:
    """Step only the simulators of `env` that are `playing` (None: all); return False if `env` cannot."""
    method = getattr(getattr(env, "unwrapped", env), LET_PLAY_METHOD, None)
    if not callable(method):
        return False
    method(None if playing is None else list(playing.numbers))
    return True


class StandingVectorEnv:
    """A vector environment with the calls of LIBERO's (`libero.libero.envs.venv`, `rlinf.envs.venv`), of
    which some simulators may stand.

    A simulator that stands is neither stepped nor drawn: what it has given last is given again. All else is
    the vector environment's own.
    """

    def __init__(self, simulators: Any) -> None:
        self._simulators = simulators
        self._given: dict[int, tuple[Any, ...]] = {}
        """What each simulator gave at its last step."""
        self._pictures: list[Any] = []
        self._playing: list[int] | None = None

    @classmethod
    def within(cls, env: Any) -> StandingVectorEnv:
        """The vector environment that a framework's `env`, or what it wraps, has as its attribute `env`."""
        owner = getattr(env, "unwrapped", env)
        if not isinstance(owner.env, cls):
            owner.env = cls(owner.env)
        simulators: StandingVectorEnv = owner.env
        return simulators

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulators, name)

    def __len__(self) -> int:
        return len(self._simulators)

    def let_play(self, numbers: Sequence[int] | None) -> None:
        """From now on those at `numbers` (None: all) are stepped, the others stand."""
        self._playing = None if numbers is None else list(numbers)

    def step(self, action: Any, id: Any = None) -> Sequence[np.ndarray]:
        """As of the class; `action` is of all simulators, or of those at `id`."""
        numbers = list(range(len(self))) if id is None else np.atleast_1d(id).tolist()
        played = [place for place, number in enumerate(numbers) if self._plays(number)]
        if len(played) == len(numbers):
            return self._noted(self._simulators.step(action, id), numbers)
        if played:
            stepped = [numbers[place] for place in played]
            self._noted(self._simulators.step(np.asarray(action)[played], stepped), stepped)
        return tuple(map(np.stack, zip(*(self._given[number] for number in numbers), strict=True)))

    def render(self, **options: Any) -> list[Any]:
        if self._playing is None:
            self._pictures = list(self._simulators.render(**options))
        else:
            # In a list of their own: who was given the one before may still look at it.
            self._pictures = list(self._pictures)
            for number in self._playing:
                self._pictures[number] = self._simulators.workers[number].render(**options)
        return self._pictures

    def _plays(self, number: int) -> bool:
        """A simulator that has never been stepped has nothing to repeat."""
        return self._playing is None or number in self._playing or number not in self._given

    def _noted(self, given: Sequence[np.ndarray], numbers: Sequence[int]) -> Sequence[np.ndarray]:
        for place, number in enumerate(numbers):
            self._given[number] = tuple(column[place] for column in given)
        return given
