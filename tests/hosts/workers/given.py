"""Small environments and settings for tests of env workers and inference ranks."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.workers.settings import WorkerSettings

CHUNK, ACTION = 2, 3


def settings(*, envs: int = 4, ranks: int = 2, horizon: int = 3, **changes: Any) -> WorkerSettings:
    """A shard of `envs` environments for `ranks` learner ranks, at level 1."""
    plan = ShardPlan(
        total_envs=envs, env_workers=1, inference_ranks=1, learner_ranks=ranks, shards_per_worker=1
    )
    given: dict[str, Any] = {
        "asynchrony": AsyncConfig.from_mapping({"mode": "train"}),
        "plan": plan,
        "horizon": horizon,
        "steps_per_decision": CHUNK,
        "action_dim": ACTION,
        "batches": 5,
        "global_batch_size": envs * horizon,
        "micro_batch_size": envs * horizon // ranks,
        "update_epoch": 1,
        "max_batch_size": envs,
        "normalizes": True,
        "gamma": 0.5,
        "auto_reset": False,
        "seed": 7,
    }
    return WorkerSettings(**{**given, **changes})


class Walks:
    """Environment i walks by what it is told, and arrives at i + 1; an episode has at most `most` decisions.

    A step is rewarded by how far it went. Arrival is at the middle of a chunk, or at its end.
    """

    def __init__(self, size: int, *, most: int, auto_reset: bool = False, ignore: bool = False) -> None:
        self.size, self.most = size, most
        self.auto_reset, self.ignore_terminations = auto_reset, ignore
        self.is_start = False
        self.resets = self.rewinds = 0
        self.goals = torch.arange(size) + 1.0

    def reset(self, chosen: torch.Tensor | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.resets += 1
        everyone = torch.ones(self.size, dtype=torch.bool) if chosen is None else chosen
        if chosen is None:
            self.where, self.decisions = torch.zeros(self.size), torch.zeros(self.size)
        self.where[everyone], self.decisions[everyone] = 0.0, 0.0
        return self._seen(), {}

    def update_reset_state_ids(self) -> None:
        self.rewinds += 1

    def chunk_step(self, actions: torch.Tensor) -> Any:
        rewards, arrived = [], []
        for step in actions[:, :, 0].unbind(dim=1):
            self.where = self.where + step
            rewards.append(step)
            arrived.append((self.where >= self.goals) & (not self.ignore_terminations))
        self.decisions += 1
        terminations = torch.stack(arrived, dim=1)
        truncations = torch.zeros_like(terminations)
        truncations[:, -1] = self.decisions >= self.most
        if self.auto_reset:
            terminations = torch.stack([torch.zeros(self.size, dtype=torch.bool), arrived[-1]], dim=1)
        info: dict[str, Any] = {"episode": {"return": self.where.clone()}}
        seen, done = self._seen(), (terminations | truncations).any(dim=1)
        if self.auto_reset and done.any():
            info = {"final_observation": seen, "final_info": info}
            seen, _ = self.reset(done)
        return [seen], torch.stack(rewards, dim=1), terminations, truncations, [info]

    def _seen(self) -> dict[str, Any]:
        return {"states": self.where.clone()[:, None], "task_descriptions": ["walk"] * self.size}


def moves(size: int, length: float) -> dict[str, Any]:
    """An answer that has everybody take steps of this length."""
    return {"actions": torch.full((size, CHUNK, ACTION), length)}
