"""The recorder of a shard's rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlinf_async.core.row_stack import stacked
from rlinf_async.core.tensors import Episodes, Tree
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import SampleRecorder, one_each
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.hosts.workers.shard import ShardOutput


class ShardRecorder(SampleRecorder[ShardOutput]):
    """Records a rollout with `prev_logprobs` of shape [T, B, chunks, action_dim].

    With auto_reset, the reward of a truncated episode's last decision includes the value of its final
    observation.
    """

    def __init__(
        self, ticket: Ticket, *, settings: WorkerSettings, every_end: bool, episodes: Episodes
    ) -> None:
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._worker_settings = settings

    def joined_inputs(self, rows: Sequence[Tree]) -> Tree:
        return stacked(rows)  # pieces go to the process of a learner rank

    def logprobs_of(self, answer: Mapping[str, Any]) -> torch.Tensor:
        shape = (
            len(answer["actions"]),
            self._worker_settings.steps_per_decision,
            self._worker_settings.action_dim,
        )
        return answer["prev_logprobs"].float().reshape(shape)

    def rewards_of(self, output: ShardOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        bootstrap = answer.get("bootstrap_values")
        if bootstrap is None or not self._worker_settings.auto_reset:
            return output.rewards
        return output.rewards + self._worker_settings.gamma * torch.where(
            output.truncated, one_each(bootstrap), 0.0
        )
