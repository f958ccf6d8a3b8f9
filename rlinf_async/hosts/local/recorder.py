"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

import torch

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.tensors import Tree, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.local.inference import Answer
from rlinf_async.hosts.local.shard import ShardOutput


class RolloutRecorder:
    """Fills `loops.ports.Recorder`.

    A payload holds `actions`, `logprobs`, `versions` and `rewards` of T decisions, and `states`, `values` and
    `ended` of T + 1 observations, [T, B, ...] each.
    """

    def __init__(self, ticket: Ticket, *, plan: ShardPlan) -> None:
        self._ticket = ticket
        self._plan = plan
        self._outputs: list[ShardOutput] = []
        self._answers: list[Answer] = []

    def append(self, output: ShardOutput, answer: Answer) -> None:
        self._outputs.append(output)
        self._answers.append(answer)

    def build(self, output: ShardOutput, answer: Answer) -> list[Piece]:
        outputs, answers = [*self._outputs, output], self._answers
        rollout: Tree = {
            "states": torch.stack([shown.states for shown in outputs]),
            "ended": torch.stack([shown.ended for shown in outputs]),
            "rewards": torch.stack([shown.rewards for shown in outputs[1:]]),
            "actions": torch.stack([given.actions for given in answers]),
            "logprobs": torch.stack([given.logprobs for given in answers]),
            "versions": torch.stack([torch.full_like(given.values, given.version) for given in answers]),
            "values": torch.stack([given.values for given in [*answers, answer]]),
        }
        return [self._piece(part, rollout) for part in range(self._plan.parts)]

    def _piece(self, part: int, rollout: Tree) -> Piece:
        size = self._plan.piece_size
        versions = [answer.version for answer in self._answers]
        return Piece(
            ticket=self._ticket,
            part=part,
            rank=self._plan.learner_rank(self._ticket.place, part),
            size=size,
            oldest=min(versions),
            newest=max(versions),
            env_steps=size * len(versions),
            payload=slice_samples(rollout, part * size, (part + 1) * size, dim=1),
        )
