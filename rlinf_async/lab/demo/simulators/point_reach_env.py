"""Points in a plane: for the local host's own policies, and behind the interface of all hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.shard import EnvFactory


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


class PointReachEnv:
    """Points to move to the origin of a plane; a decision is one action.

    The class needs only numpy and torch, and so is no `gymnasium.Env`.
    """

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        del total_num_processes, worker_info  # part of the signature
        self.num_envs = num_envs
        self.auto_reset = self.ignore_terminations = False
        self.is_start = True
        self._horizon = int(cfg.max_episode_steps)
        self._points = PointReach(
            num_envs, first=seed_offset * num_envs, group_size=int(cfg.group_size), seed=int(cfg.seed)
        )
        self._steps, self._returns = 0, torch.zeros(num_envs)

    def reset(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        self._steps, self._returns = 0, torch.zeros(self.num_envs)
        return self._observation(torch.tensor(self._points.begin())), {}

    def take_on(self, seed_offset: int, rollout: int) -> None:
        """Let the next reset begin rollout number `rollout` of the environments of shard `seed_offset`."""
        self._points.take_on(seed_offset, rollout)

    def close(self) -> None:
        """Do nothing: points hold no resources."""

    def update_reset_state_ids(self) -> None:
        """Do nothing between rollouts: every reset draws new points."""

    def chunk_step(
        self, chunk_actions: object
    ) -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Take actions [num_envs, 1, 2]; rewards and flags are [num_envs, 1]."""
        actions = torch.as_tensor(chunk_actions).squeeze(1).numpy()
        states, rewards, ended = map(torch.tensor, self._points.decide(actions))
        self._steps += 1
        self._returns = self._returns + rewards
        truncated = torch.full((self.num_envs, 1), self._steps >= self._horizon)
        episode = {"success_once": ended.clone(), "return": self._returns.clone()}
        return (
            [self._observation(states)],
            rewards[:, None],
            ended[:, None],
            truncated,
            [{"episode": episode}],
        )

    def _observation(self, states: torch.Tensor) -> dict[str, Any]:
        return {"states": states, "task_descriptions": ["to the origin"] * self.num_envs}
