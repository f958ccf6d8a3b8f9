"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.tensors import Episodes, Tree
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import Recorder
from rlinf_async.hosts.rlinf.env_shard import ShardOutput
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.hosts.rlinf.trajectory import Trajectory
from rlinf_async.ray_runtime.driver.step_reporter import MODEL_REWARDS


class ShardRecorder(Recorder[ShardOutput]):
    """Records what RLinf's workers would, chunk step by chunk step, for one rollout epoch."""

    def __init__(
        self, ticket: Ticket, *, settings: RLinfSettings, cfg: DictConfig, episodes: Episodes
    ) -> None:
        env = cfg.env.train
        every_end = bool(env.auto_reset or env.ignore_terminations)
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._algorithm, self._resets = cfg.algorithm, bool(env.auto_reset)
        self._trajectory = Trajectory()

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.env.obs

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.info

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        step = output.env
        if step.intervene_actions is not None:
            assert step.intervene_flags is not None, "a hand says where it acted"
            self._trajectory.correct(step.intervene_actions, step.intervene_flags)
        values = answer["bootstrap_values"] if self._resets else None
        self._trajectory.see(step, step.rewards_with(values, self._algorithm), answer["prev_values"])
        if step.spread is not None:
            self._trajectory.spread(*step.spread)
        if step.model_rewards is not None:
            self._own_episodes.append({MODEL_REWARDS: step.model_rewards.float().flatten()})

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        self._trajectory.decide(inputs, answer["prev_logprobs"], version=answer["version"])

    def rollout(self) -> Tree:
        return self._trajectory.whole()
