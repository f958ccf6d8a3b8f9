"""Environments with vector states for this host's policies, and a tiny example of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class StateEnvs:
    """Environments with a vector state and one action per decision, with the interface of `rlinf_async.envs`.

    Subclasses implement `begin` and `decide`. After its end an episode does not change: `ended` stays True
    until the next one begins, and later rewards do not count. Episodes are not truncated: at the horizon the
    value of their last state is bootstrapped. Optional methods are `abort(reason)`, called from another
    thread, which ends the processes of hanging environments and returns True if there were any; and
    `take_on(seed_offset, rollout)`.
    """

    state_dim: int
    action_dim: int

    def begin(self) -> np.ndarray:
        """Start the next episode in all environments; return states [envs, state_dim], float32."""
        raise NotImplementedError

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions [envs, action_dim]; return states, rewards and `ended`, [envs, ...] each."""
        raise NotImplementedError

    def skip(self, episodes: int) -> None:
        """Skip the next episodes: rebuilt environments would begin with the first ones again. The default
        does nothing, for environments that draw their episodes at random.
        """

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": self.begin()}, {}

    def update_reset_state_ids(self) -> None:
        """Do nothing: the next episode follows by itself."""

    def chunk_step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        """Take actions [envs, 1, action_dim]."""
        states, rewards, ended = self.decide(actions[:, 0].numpy())
        return {"states": states}, rewards[:, None], ended[:, None], np.zeros((len(ended), 1), dtype=bool), {}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


EnvFactory = Callable[[int, int], Any]
"""Called with `first` and `size`, in the shard's thread: builds environments `first` to `first + size` of the
run, with the interface of `rlinf_async.envs`."""


class PointReach(StateEnvs):
    """Points that the policy moves to the origin of a plane; the reward is one, once, on arrival.

    The k-th episode of an environment is independent of its shard, and the same for all members of a group.
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
        """Have the next reset begin rollout `rollout` of the shard with number `seed_offset`."""
        self._groups, self._episode = self._groups_of(seed_offset * self._size), rollout

    def _groups_of(self, first: int) -> list[int]:
        return [(first + index) // self._group_size for index in range(self._size)]


def point_reach(*, group_size: int = 1, seed: int = 0) -> EnvFactory:
    """Return a factory for shards of PointReach."""
    return lambda first, size: PointReach(size, first=first, group_size=group_size, seed=seed)
