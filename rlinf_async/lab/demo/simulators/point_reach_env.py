"""The local host's PointReach, behind the hosts' interface of environments."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.hosts.local.envs import PointReach


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
