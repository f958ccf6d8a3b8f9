"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import Episodes
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import SampleRecorder, one_each
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.hosts.workers.shard import ShardOutput


class ShardRecorder(SampleRecorder[ShardOutput]):
    """Records a rollout whose `prev_logprobs` are [T, B, chunks, action_dim].

    Where episodes are reset, one that was cut off is continued by the value of its end, in the `rewards`.
    """

    def __init__(
        self, ticket: Ticket, *, settings: WorkerSettings, every_end: bool, episodes: Episodes
    ) -> None:
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._of = settings

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.observation

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.episodes

    def logprobs_of(self, answer: Mapping[str, Any]) -> torch.Tensor:
        shape = (len(answer["actions"]), self._of.steps_per_decision, self._of.action_dim)
        logprobs: torch.Tensor = answer["prev_logprobs"].float().reshape(shape)
        return logprobs

    def rewards_of(self, output: ShardOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        bootstrap = answer.get("bootstrap_values")
        if bootstrap is None or not self._of.auto_reset:
            return output.rewards
        return output.rewards + self._of.gamma * torch.where(output.truncated, one_each(bootstrap), 0.0)
