"""Environments of numbers for policies of this host, and the tiny ones that tests and first readers use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class StateEnvs:
    """Environments that show a row of numbers each, and take one action in a decision, as environments of
    `rlinf_async.envs`.

    A class says how they `begin` and `decide`. An episode that has ended stands still: `ended` is True until
    the next one begins, and rewards after it count nothing. Nothing cuts episodes off: the value of their
    last states counts for the rest. Optional methods are `abort(reason)`, which ends the processes of
    environments that hang, from another thread, and says whether there were any; and
    `take_on(seed_offset, rollout)`.
    """

    state_dim: int
    action_dim: int

    def begin(self) -> np.ndarray:
        """Start the next episode of all; their states [envs, state_dim], float32."""
        raise NotImplementedError

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one decision, actions [envs, action_dim]; states, rewards and `ended`, of [envs, ...]."""
        raise NotImplementedError

    def skip(self, episodes: int) -> None:
        """Leave out the next episodes: environments that are rebuilt would begin with the first ones. By
        default every environment draws its episodes anew."""

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": self.begin()}, {}

    def update_reset_state_ids(self) -> None:
        """Do nothing: the next episode follows by itself."""

    def chunk_step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        """Take actions [envs, 1, action_dim]."""
        states, rewards, ended = self.decide(actions[:, 0].numpy())
        return {"states": states}, rewards[:, None], ended[:, None], np.zeros((len(ended), 1), dtype=bool), {}

    def close(self) -> None:
        """Do nothing: no resource is held."""


EnvFactory = Callable[[int, int], Any]
"""Builds environments `first` to `first + size` of the run, with the interface of `rlinf_async.envs`; called
in the thread of their shard."""


class PointReach(StateEnvs):
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

    def begin(self) -> np.ndarray:
        angles = [
            np.random.default_rng((self._seed, group, self._episode)).uniform(0, 2 * np.pi)
            for group in self._groups
        ]
        starts = self.distance * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        self._states = starts.astype(np.float32)
        self._ended[:] = False
        self._episode += 1
        return self._states

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moving = ~self._ended
        moves = np.float32(self.stride) * np.clip(actions, -1.0, 1.0)
        self._states = self._states + moves * moving[:, None]
        arrived = moving & (np.linalg.norm(self._states, axis=1) < self.radius)
        self._ended = self._ended | arrived
        return self._states, arrived.astype(np.float32), self._ended

    def skip(self, episodes: int) -> None:
        self._episode += episodes

    def take_on(self, seed_offset: int, rollout: int) -> None:
        """The next reset begins this rollout of the points that `seed_offset` numbers."""
        self._groups, self._episode = self._groups_of(seed_offset * self._size), rollout

    def _groups_of(self, first: int) -> list[int]:
        return [(first + index) // self._group_size for index in range(self._size)]


def point_reach(*, group_size: int = 1, seed: int = 0) -> EnvFactory:
    """Shards of PointReach."""
    return lambda first, size: PointReach(size, first=first, group_size=group_size, seed=seed)
