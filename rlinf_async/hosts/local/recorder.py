"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import Tree
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import SampleRecorder
from rlinf_async.hosts.local.shard import ShardOutput
from rlinf_async.loops.run_settings import RunSettings


class RolloutRecorder(SampleRecorder[ShardOutput]):
    """Records, where environments tell, which of the episodes that have `ended` were cut off: `truncated`."""

    def __init__(self, ticket: Ticket, *, settings: RunSettings) -> None:
        super().__init__(ticket, settings=settings, every_end=False, episodes=[])
        self._cuts: list[torch.Tensor | None] = []
        self._steps = 1

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return {"states": output.states}

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return {}

    def steps_per_decision(self) -> int:
        return self._steps

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        super().see(output, answer)
        self._cuts.append(output.truncated)

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        super().decide(inputs, answer)
        if answer["actions"].dim() == 3:  # [B, C, A] where a decision has C steps
            self._steps = answer["actions"].shape[1]

    def rollout(self) -> Tree:
        rollout = super().rollout()
        if self._cuts[-1] is not None:
            none = torch.zeros_like(self._cuts[-1])
            rollout["truncated"] = torch.stack([none if cut is None else cut for cut in self._cuts])
        return rollout
