"""RLinf's simulators in processes of their own, of which those whose episodes have ended are left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_async.core.config_keys import lookup

EXAMINED_SIMULATORS: frozenset[str] = frozenset({"libero", "metaworld"})
"""RLinf's environments that were shown, frame by frame and over resets, to be what they would be if those
that are left alone had been stepped (`benchmarks/dead_work/standing.py`)."""


def stands(section: Mapping[str, Any]) -> bool:
    """Return True if simulators of an `env` section can be left alone."""
    own_class = lookup(section, "env_class")
    return not own_class and str(lookup(section, "env_type")) in EXAMINED_SIMULATORS


class StandingVectorEnv:
    """A vector environment of RLinf's (`rlinf.envs.venv`), some of whose simulators may stand.

    A simulator that stands is neither stepped nor drawn: what it has given last is given again. All else is
    the vector environment's own.
    """

    def __init__(self, simulators: Any) -> None:
        self._simulators = simulators
        self._steps: tuple[np.ndarray, ...] = ()
        self._pictures: list[Any] = []
        self._playing: list[int] | None = None

    @classmethod
    def within(cls, env: Any) -> StandingVectorEnv:
        """The vector environment of RLinf's `env`, and of whatever wraps it."""
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

    def step(self, action: Any, id: Any = None) -> tuple[np.ndarray, ...]:
        """As of the class; `action` is of all simulators, or of those at `id`."""
        if id is not None:
            chosen: tuple[np.ndarray, ...] = self._simulators.step(action, id)
            return chosen
        if self._playing is None:
            self._steps = self._simulators.step(action)
        elif self._playing:
            own = self._simulators.step(np.asarray(action)[self._playing], self._playing)
            self._steps = tuple(map(self._with_own, self._steps, own))
        return self._steps

    def render(self, **options: Any) -> list[Any]:
        if self._playing is None:
            self._pictures = list(self._simulators.render(**options))
        else:
            # In a list of their own: who was given the one before may still look at it.
            self._pictures = list(self._pictures)
            for number in self._playing:
                self._pictures[number] = self._simulators.workers[number].render(**options)
        return self._pictures

    def _with_own(self, before: np.ndarray, own: np.ndarray) -> np.ndarray:
        # A copy: who was given the array before may still look at it.
        whole = before.copy()
        whole[self._playing] = own
        return whole
