"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import Tree, concatenate
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import Recorder, one_row
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.hosts.workers.shard import ShardOutput
from rlinf_async.ray_runtime.shard_worker import Episodes


class ShardRecorder(Recorder[ShardOutput]):
    """Records T decisions of B environments; what it makes of them is side by side along dimension 1.

    forward_inputs    {name: [T, B, ...]}, what the policy scores its actions by
    bootstrap_inputs  {name: [1, B, ...]}, of the last observation; where values are recomputed
    prev_logprobs     [T, B, chunks, action_dim], of the policy that acted
    prev_values       [T + 1, B], where the policy has some
    rewards           [T, B]; a truncated episode that is reset is continued by the value of its end
    ended             [T + 1, B]: before the decision
    versions          [T, B] int64
    """

    def __init__(
        self, ticket: Ticket, *, settings: WorkerSettings, every_end: bool, episodes: Episodes
    ) -> None:
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._of = settings
        self._scored_by: list[Tree] = []
        self._logprobs: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rewards: list[torch.Tensor] = []
        self._ended: list[torch.Tensor] = []

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.observation

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.episodes

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        self._rewards.append(self._rewards_of(output, answer))
        # A rollout of environments that reset themselves begins in the middle of episodes.
        self._ended.append(output.ended if self._versions else torch.zeros_like(output.ended))
        if answer.get("prev_values") is not None:
            self._values.append(_first(answer["prev_values"]))

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        shape = (len(answer["actions"]), self._of.steps_per_decision, self._of.action_dim)
        self._scored_by.append(inputs)
        self._logprobs.append(answer["prev_logprobs"].float().reshape(shape))

    def rollout(self) -> Tree:
        ended = torch.stack(self._ended)
        noted: Tree = {
            "forward_inputs": concatenate([one_row(inputs) for inputs in self._scored_by]),
            "prev_logprobs": torch.stack(self._logprobs),
            "rewards": torch.stack(self._rewards[1:]),
            "ended": ended,
            "versions": torch.tensor(self._versions)[:, None].expand(-1, ended.shape[1]),
        }
        return noted | ({"prev_values": torch.stack(self._values)} if self._values else {})

    def _rewards_of(self, output: ShardOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        bootstrap = answer.get("bootstrap_values")
        if bootstrap is None or not self._of.auto_reset:
            return output.rewards
        return output.rewards + self._of.gamma * torch.where(output.truncated, _first(bootstrap), 0.0)


def _first(values: torch.Tensor) -> torch.Tensor:
    """One value for each environment, [B]."""
    return values.float().reshape(len(values), -1)[:, 0]
