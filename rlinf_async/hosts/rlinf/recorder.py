"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.pieces import pieces
from rlinf_async.core.tensors import Tree, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.rlinf.env_shard import ShardOutput
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.hosts.rlinf.trajectory import Trajectory
from rlinf_async.loops.finite import check_answer
from rlinf_async.ray_runtime.observation_reuse import with_echoes
from rlinf_async.ray_runtime.reporting import MODEL_REWARDS

SCORE_FIELDS = ("actions", "prev_logprobs", "prev_values", "bootstrap_values")
"""Fields of an answer that have to be finite."""


class ShardRecorder:
    """Records what RLinf's workers would, chunk step by chunk step, for one rollout epoch.

    Answers are those of `BatchingRolloutWorker.answer`.
    """

    def __init__(
        self,
        ticket: Ticket,
        *,
        settings: RLinfSettings,
        cfg: DictConfig,
        episodes: list[dict[str, torch.Tensor]],
    ) -> None:
        self._ticket = ticket
        self._settings = settings
        self._algorithm = cfg.algorithm
        self._trajectory = Trajectory()
        self._episodes = episodes
        self._own_episodes: list[dict[str, torch.Tensor]] = []
        self._versions: list[int] = []
        env = cfg.env.train
        self._resets = bool(env.auto_reset)
        self._every_step = bool(env.auto_reset or env.ignore_terminations)

    def append(self, output: ShardOutput, answer: dict[str, Any]) -> None:
        self._see(output, answer)
        version = answer["version"]
        self._trajectory.decide(_inputs(output, answer), answer["prev_logprobs"], version=version)
        self._versions.append(version)

    def build(self, output: ShardOutput, answer: dict[str, Any]) -> list[Piece]:
        self._see(output, answer)
        self._episodes.extend(self._own_episodes)
        plan = self._settings.plan
        bootstrap = _inputs(output, answer) if self._settings.asynchrony.recomputes else {}
        payloads = [
            trajectory | {"bootstrap_inputs": slice_samples(bootstrap, *ends)}
            for ends, trajectory in zip(plan.piece_ends, self._trajectory.cut(plan.piece_ends), strict=True)
        ]
        steps = self._settings.steps_per_decision
        return pieces(self._ticket, payloads, plan=plan, versions=self._versions, steps_per_decision=steps)

    def _see(self, output: ShardOutput, answer: dict[str, Any]) -> None:
        """Keep what came of the decision before, with the episode statistics that RLinf would record at this
        point; all numbers are finite."""
        step, scores = output.env, {name: answer.get(name) for name in SCORE_FIELDS}
        check_answer(self._settings.asynchrony.advanced, scores, version=answer["version"])
        if step.intervene_actions is not None:
            assert step.intervene_flags is not None, "a hand says where it acted"
            self._trajectory.correct(step.intervene_actions, step.intervene_flags)
        if output.info and (self._every_step or len(self._versions) == self._settings.horizon):
            self._own_episodes.append(output.info)
        values = answer["bootstrap_values"] if self._resets else None
        self._trajectory.see(step, step.rewards_with(values, self._algorithm), answer["prev_values"])
        if step.spread is not None:
            self._trajectory.spread(*step.spread)
        if step.model_rewards is not None:
            self._own_episodes.append({MODEL_REWARDS: step.model_rewards.float().flatten()})


def _inputs(output: ShardOutput, answer: dict[str, Any]) -> Tree:
    """Return the inputs by which the policy is to be scored."""
    return dict(with_echoes(answer["forward_inputs"], answer["echoes"], output.env.obs))
