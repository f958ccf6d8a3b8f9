"""Environments that step together, and the tiny one that tests and first readers use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """The results of one decision; every field is [envs, ...], and so are the fields of an observation.

    `ended` is True where the episode is over: by a cut where `truncated` is True, else by success. Both stay
    so until the next reset. Rewards of episodes that are over count nothing.
    """

    states: np.ndarray | dict[str, Any]
    rewards: np.ndarray
    ended: np.ndarray
    truncated: np.ndarray | None = None


class Environments(Protocol):
    """A batch of environments, built and used in one thread. An episode that has ended stands still.

    Optional methods: `skip(episodes)` leaves out the next episodes, so that environments which are rebuilt
    after a failure do not begin again with the first ones; `abort(reason)`, called from another thread when
    they do not answer, ends their processes, so that the call that hangs raises an error, and says whether
    there were any; `take_on(first, episode)` has the next reset begin episode number `episode`, from 0, of
    the environments from number `first` on, with their tasks and groups (`async.advanced.balance=tasks`).
    """

    @property
    def state_dim(self) -> int: ...

    @property
    def action_dim(self) -> int: ...

    def reset(self) -> np.ndarray | dict[str, Any]:
        """Start the next episode of all; their states [envs, state_dim], float32, or an observation."""

    def step(self, actions: np.ndarray) -> Outcome:
        """Take one decision, actions [envs, action_dim]."""

    def close(self) -> None: ...


EnvFactory = Callable[[int, int], Environments]
"""Builds environments `first` to `first + size` of the run; called in the thread of their shard."""


class PointReach:
    """Points that are to be moved to the origin of a plane; a reward of one, once, for arriving.

    The k-th episode of an environment is the same whatever shard it is in, and the same for all members
    of a group.
    """

    state_dim = 2
    action_dim = 2
    stride = 0.25
    radius = 0.2
    distance = 0.9

    def __init__(self, size: int, *, first: int = 0, group_size: int = 1, seed: int = 0) -> None:
        self._size, self._group_size = size, group_size
        self._groups = self._groups_of(first)
        self._seed = seed
        self._episode = 0
        self._states = np.zeros((size, self.state_dim), dtype=np.float32)
        self._ended = np.zeros(size, dtype=bool)

    def reset(self) -> np.ndarray:
        angles = [
            np.random.default_rng((self._seed, group, self._episode)).uniform(0, 2 * np.pi)
            for group in self._groups
        ]
        starts = self.distance * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        self._states = starts.astype(np.float32)
        self._ended[:] = False
        self._episode += 1
        return self._states

    def step(self, actions: np.ndarray) -> Outcome:
        moving = ~self._ended
        moves = np.float32(self.stride) * np.clip(actions, -1.0, 1.0)
        self._states = self._states + moves * moving[:, None]
        arrived = moving & (np.linalg.norm(self._states, axis=1) < self.radius)
        self._ended = self._ended | arrived
        # A copy: `reset` clears the array in place.
        return Outcome(self._states, arrived.astype(np.float32), self._ended.copy())

    def skip(self, episodes: int) -> None:
        """Leave the next episodes out."""
        self._episode += episodes

    def take_on(self, first: int, episode: int) -> None:
        """The next reset begins this episode of the points from number `first` on."""
        self._groups, self._episode = self._groups_of(first), episode

    def _groups_of(self, first: int) -> list[int]:
        return [(first + index) // self._group_size for index in range(self._size)]

    def close(self) -> None:
        """Do nothing: no resource is held."""


def point_reach(*, group_size: int = 1, seed: int = 0) -> EnvFactory:
    """Shards of PointReach."""
    return lambda first, size: PointReach(size, first=first, group_size=group_size, seed=seed)
