"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

import torch

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.pieces import pieces
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.tensors import Tree, concatenate, map_tensors, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.local.inference import Answer
from rlinf_async.hosts.local.shard import ShardOutput
from rlinf_async.loops.finite import check_answer


class RolloutRecorder:
    """Fills `loops.ports.Recorder`.

    A payload holds `actions`, `logprobs`, `versions` and `rewards` of T decisions, and `states`, `values` and
    `ended` of T + 1 observations, [T, B, ...] each. In the place of states it may have a tree of tensors:
    what a policy that sees observations is to be scored by. Where environments tell, `truncated` says which
    of those that have `ended` were cut off.
    """

    def __init__(self, ticket: Ticket, *, plan: ShardPlan, advanced: AdvancedConfig) -> None:
        self._ticket = ticket
        self._plan = plan
        self._advanced = advanced
        self._outputs: list[ShardOutput] = []
        self._answers: list[Answer] = []

    def append(self, output: ShardOutput, answer: Answer) -> None:
        self._check(answer)
        self._outputs.append(output)
        self._answers.append(answer)

    def build(self, output: ShardOutput, answer: Answer) -> list[Piece]:
        self._check(answer)
        outputs, answers = [*self._outputs, output], self._answers
        rollout: Tree = {
            "states": _seen(outputs, [*answers, answer]),
            "ended": torch.stack([each.ended for each in outputs]),
            "rewards": torch.stack([each.rewards for each in outputs[1:]]),
            "actions": torch.stack([each.actions for each in answers]),
            "logprobs": torch.stack([each.logprobs for each in answers]),
            "versions": torch.stack([torch.full_like(each.values, each.version) for each in answers]),
            "values": torch.stack([each.values for each in [*answers, answer]]),
        }
        if output.truncated is not None:
            cut = [
                torch.zeros_like(each.ended) if each.truncated is None else each.truncated for each in outputs
            ]
            rollout["truncated"] = torch.stack(cut)
        payloads = [slice_samples(rollout, *ends, dim=1) for ends in self._plan.piece_ends]
        versions = [each.version for each in answers]
        actions = answers[0].actions  # [B, C, A] where a decision has C steps
        steps = actions.shape[1] if actions.dim() == 3 else 1
        return pieces(self._ticket, payloads, plan=self._plan, versions=versions, steps_per_decision=steps)

    def _check(self, answer: Answer) -> None:
        scores = {"actions": answer.actions, "logprobs": answer.logprobs, "values": answer.values}
        check_answer(self._advanced, scores, version=answer.version)


def _seen(outputs: list[ShardOutput], answers: list[Answer]) -> torch.Tensor | Tree:
    inputs = [answer.inputs for answer in answers if answer.inputs is not None]
    if not inputs:
        return torch.stack([output.states for output in outputs])  # type: ignore[misc]
    return concatenate([map_tensors(lambda tensor: tensor.unsqueeze(0), each) for each in inputs])
