"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.pieces import pieces
from rlinf_async.core.tensors import Tensors, Tree, concatenate, map_tensors, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.hosts.workers.shard import Episodes, ShardOutput
from rlinf_async.loops.finite import check_answer
from rlinf_async.ray_runtime.observation_reuse import with_echoes


class ShardRecorder:
    """Records T decisions of B environments; what it makes of them is side by side along dimension 1.

    forward_inputs    {name: [T, B, ...]}, what the policy scores its actions by
    bootstrap_inputs  {name: [1, B, ...]}, of the last observation; where values are recomputed
    logprobs          [T, B, chunks, action_dim], of the policy that acted
    values            [T + 1, B], where the policy has some
    rewards           [T, B]; a truncated episode that is reset is continued by the value of its end
    ended             [T + 1, B]: before the decision
    versions          [T, B] int64
    """

    def __init__(
        self, ticket: Ticket, *, settings: WorkerSettings, every_end: bool, episodes: Episodes
    ) -> None:
        """`every_end`: whether each output brings episodes of its own; else the last one has them all."""
        self._ticket, self._settings = ticket, settings
        self._every_end, self._episodes = every_end, episodes
        self._own_episodes: Episodes = []
        self._inputs: list[Tree] = []
        self._logprobs: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rewards: list[torch.Tensor] = []
        self._ended: list[torch.Tensor] = []
        self._versions: list[int] = []

    def append(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        self._note(output, answer)
        shape = (len(output.ended), self._settings.steps_per_decision, self._settings.action_dim)
        self._inputs.append(dict(_inputs(output, answer)))
        self._logprobs.append(answer["logprobs"].float().reshape(shape))
        self._versions.append(int(answer["version"]))

    def build(self, output: ShardOutput, answer: Mapping[str, Any]) -> list[Piece]:
        self._note(output, answer)
        self._episodes.extend(self._own_episodes)
        data: Tree = {
            "forward_inputs": concatenate([_stack_one(inputs) for inputs in self._inputs]),
            "logprobs": torch.stack(self._logprobs),
            "rewards": torch.stack(self._rewards[1:]),
            "ended": torch.stack(self._ended),
            "versions": torch.tensor(self._versions)[:, None].expand(-1, len(output.ended)),
        }
        if self._values:
            data["values"] = torch.stack(self._values)
        if self._settings.asynchrony.recomputes:
            data["bootstrap_inputs"] = _stack_one(dict(_inputs(output, answer)))
        plan, steps = self._settings.plan, self._settings.steps_per_decision
        payloads = [slice_samples(data, *ends, dim=1) for ends in plan.piece_ends]
        return pieces(self._ticket, payloads, plan=plan, versions=self._versions, steps_per_decision=steps)

    def _note(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        """Note the results of the decision before, and the value of the state that it has led to."""
        scores = {name: answer.get(name) for name in ("actions", "logprobs", "values", "bootstrap_values")}
        check_answer(self._settings.asynchrony.advanced, scores, version=int(answer["version"]))
        last = len(self._versions) == self._settings.horizon
        if output.episodes and (self._every_end or last):
            self._own_episodes.append(output.episodes)
        self._rewards.append(self._rewards_of(output, answer))
        # A rollout of environments that reset themselves begins in the middle of episodes.
        self._ended.append(output.ended if self._versions else torch.zeros_like(output.ended))
        if answer.get("values") is not None:
            self._values.append(answer["values"].float())

    def _rewards_of(self, output: ShardOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        bootstrap = answer.get("bootstrap_values")
        if bootstrap is None or not self._settings.auto_reset:
            return output.rewards
        return output.rewards + self._settings.gamma * torch.where(output.truncated, bootstrap.float(), 0.0)


def _inputs(output: ShardOutput, answer: Mapping[str, Any]) -> Tensors:
    """Return the inputs by which the policy is to be scored."""
    return with_echoes(answer["forward_inputs"], answer["echoes"], output.observation)


def _stack_one(inputs: Tree) -> Tree:
    return map_tensors(lambda tensor: tensor.unsqueeze(0), inputs)
