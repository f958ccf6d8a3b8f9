"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch

from rlinf_async.core.pieces import pieces
from rlinf_async.core.tensors import Tree, map_tensors, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.finite import check_answer
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.observation_reuse import with_echoes
from rlinf_async.ray_runtime.shard_worker import Episodes

Output = TypeVar("Output")
SCORE_FIELDS = ("actions", "prev_logprobs", "prev_values", "bootstrap_values")
"""Fields of an answer that have to be finite."""


class Recorder(Generic[Output]):
    """Records one rollout of the environments of a shard; fills `loops.ports.Recorder`.

    Answers are those of `PolicyWorker`. A host notes what came of the decisions, and gives all of it, of
    [T, B, ...], in `rollout`. The inputs of the last observation, `bootstrap_inputs` [1, B, ...], come to it
    where values are recomputed.
    """

    def __init__(self, ticket: Ticket, *, settings: RunSettings, every_end: bool, episodes: Episodes) -> None:
        """`every_end`: whether each output brings episodes of its own; else the last one has them all."""
        self._ticket, self._settings = ticket, settings
        self._every_end, self._episodes = every_end, episodes
        self._own_episodes: Episodes = []
        self._versions: list[int] = []

    def append(self, output: Output, answer: Mapping[str, Any]) -> None:
        self._see(output, answer)
        self.decide(self._inputs(output, answer), answer)
        self._versions.append(int(answer["version"]))

    def build(self, output: Output, answer: Mapping[str, Any]) -> list[Piece]:
        self._see(output, answer)
        self._episodes.extend(self._own_episodes)
        plan, steps = self._settings.plan, self._settings.steps_per_decision
        rollout = self.rollout()
        if self._settings.asynchrony.recomputes:
            rollout["bootstrap_inputs"] = one_row(self._inputs(output, answer))
        # In memory of their own: a piece must not keep the others.
        payloads = [
            map_tensors(torch.Tensor.contiguous, slice_samples(rollout, *ends, dim=1))
            for ends in plan.piece_ends
        ]
        return pieces(self._ticket, payloads, plan=plan, versions=self._versions, steps_per_decision=steps)

    def _see(self, output: Output, answer: Mapping[str, Any]) -> None:
        """Note the results of the decision before, and the value of the state that it has led to."""
        scores = {name: answer.get(name) for name in SCORE_FIELDS}
        check_answer(self._settings.asynchrony.advanced, scores, version=int(answer["version"]))
        last = len(self._versions) == self._settings.horizon
        if (told := self.episodes_of(output)) and (self._every_end or last):
            self._own_episodes.append(told)
        self.see(output, answer)

    def _inputs(self, output: Output, answer: Mapping[str, Any]) -> Tree:
        """Return the inputs by which the policy is to be scored."""
        return dict(with_echoes(answer["forward_inputs"], answer["echoes"], self.observation_of(output)))

    def observation_of(self, output: Output) -> dict[str, Any]:
        """Return the observation that the policy has answered. A host gives it."""
        raise NotImplementedError

    def episodes_of(self, output: Output) -> dict[str, torch.Tensor]:
        """Return the statistics of episodes that have come with an output. A host gives them."""
        raise NotImplementedError

    def see(self, output: Output, answer: Mapping[str, Any]) -> None:
        """Note what an output shows, and the values that the policy gives it. A host does."""
        raise NotImplementedError

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        """Note a decision, and the inputs by which it is to be scored. A host does."""
        raise NotImplementedError

    def rollout(self) -> Tree:
        """Return all that was noted, [T, B, ...] or [T + 1, B, ...]. A host gives it."""
        raise NotImplementedError


def one_row(tree: Tree) -> Tree:
    """Return tensors of [B, ...] as those of one moment, [1, B, ...]."""
    return map_tensors(lambda tensor: tensor.unsqueeze(0), tree)
