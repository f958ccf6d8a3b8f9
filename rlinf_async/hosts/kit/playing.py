"""Environments that are spared work that no result needs: steps after the end of their episodes, and frames
that the policy does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlinf_async.core.tensors import Tree, with_rows
from rlinf_async.hosts.observations import items


@dataclass(frozen=True, kw_only=True)
class Playing:
    """The environments that play on after an output. The other environments wait for a reset."""

    numbers: tuple[int, ...]
    """Indices in the shard, in ascending order."""
    others_stand: bool = False
    """True if the other environments are not stepped."""

    @classmethod
    def after(cls, over: torch.Tensor, *, others_stand: bool = False) -> Playing | None:
        """Return the environments that are not `over`, [B] bool; None if all play on."""
        if not over.any():
            return None
        return cls(numbers=tuple((~over).nonzero().flatten().tolist()), others_stand=others_stand)

    def of(self, shown: Any) -> Any:
        """Return the items of the playing environments, from an observation of all environments."""
        return items(shown, self.numbers)

    def among(self, before: Tree, own: Tree) -> Tree:
        """Return [B, ...]: the rows `own` [n, ...] of the playing environments, and rows of `before` for the
        others.
        """
        return with_rows(before, own, torch.tensor(self.numbers, dtype=torch.long))


def as_they_ended(
    now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], *, over: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return statistics [B, ...] of episodes: from `before` for environments that were `over` [B] bool, else
    from `now`.
    """
    result = dict(now)
    for name in now.keys() & before.keys():
        rows = over.reshape(-1, *[1] * (now[name].dim() - 1))
        result[name] = torch.where(rows, before[name], now[name])
    return result


LET_PLAY_METHOD = "let_play"
"""A method of environments that can step single simulators. It takes the numbers of the simulators to step
from now on, or None for all; the others repeat their last output. See docs/extending.md."""


def let_play(env: object, playing: Playing | None) -> bool:
    """Step only the simulators of `env` that are `playing` (None: all); return False if `env` cannot."""
    method = getattr(getattr(env, "unwrapped", env), LET_PLAY_METHOD, None)
    if not callable(method):
        return False
    method(None if playing is None else list(playing.numbers))
    return True


class StandingVectorEnv:
    """A vector environment with the methods of LIBERO's (`libero.libero.envs.venv`, `rlinf.envs.venv`) that
    may leave simulators standing.

    A standing simulator is neither stepped nor rendered, and its last output is repeated. All other calls go
    to the wrapped vector environment.
    """

    def __init__(self, simulators: Any) -> None:
        self._simulators = simulators
        self._given: dict[int, tuple[Any, ...]] = {}
        """The output of each simulator's last step."""
        self._pictures: list[Any] = []
        self._playing: list[int] | None = None

    @classmethod
    def within(cls, env: Any) -> StandingVectorEnv:
        """Wrap the vector environment in the attribute `env` of a framework's environment, if it is not
        wrapped yet, and return the wrapper.
        """
        owner = getattr(env, "unwrapped", env)
        if not isinstance(owner.env, cls):
            owner.env = cls(owner.env)
        return owner.env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulators, name)

    def __len__(self) -> int:
        return len(self._simulators)

    def let_play(self, numbers: Sequence[int] | None) -> None:
        """Step only the simulators at `numbers` from now on (None: all)."""
        self._playing = None if numbers is None else list(numbers)

    def step(self, action: Any, id: Any = None) -> Sequence[np.ndarray]:
        """Return the outputs of the simulators; `action` has a row for each, or for each number in `id`."""
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
            # A new list: the caller of the previous `render` may still read its list.
            self._pictures = list(self._pictures)
            for number in self._playing:
                self._pictures[number] = self._simulators.workers[number].render(**options)
        return self._pictures

    def _plays(self, number: int) -> bool:
        """Return True if a simulator is stepped: it plays, or has no output yet that could be repeated."""
        return self._playing is None or number in self._playing or number not in self._given

    def _noted(self, given: Sequence[np.ndarray], numbers: Sequence[int]) -> Sequence[np.ndarray]:
        for place, number in enumerate(numbers):
            self._given[number] = tuple(column[place] for column in given)
        return given


ADAPTER_GROUP = "rlinf_async.frames"
"""Entry points by the name of a framework's environment (`env_type`): functions that take an environment
class and return a subclass with `draw_last_only`, or None for a class that they do not know."""

DRAW_METHOD = "draw_last_only"
"""A method of environments, without arguments. After the call, a run reads only the last observation of each
`chunk_step`, and the environments need not draw other frames; see docs/extending.md."""


def draw_last_only(env: object) -> None:
    """Call the environments' `draw_last_only`, if they have it."""
    leave_out = getattr(getattr(env, "unwrapped", env), DRAW_METHOD, None)
    if callable(leave_out):
        leave_out()
