"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.core.pieces import pieces
from rlinf_async.core.tensors import slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.rlinf.compat import ChunkStepResult, EmbodiedTrajectoryBuilder, Trajectory
from rlinf_async.hosts.rlinf.env_shard import ShardOutput
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.loops.finite import check_answer
from rlinf_async.ray_runtime.observation_reuse import with_echoes

SCORES = ("actions", "prev_logprobs", "prev_values", "bootstrap_values")
"""What of an answer has to be finite."""


class ShardRecorder:
    """Records what RLinf's env worker would, chunk step by chunk step, for one rollout epoch.

    Answers are dictionaries with the fields of RLinf's `RolloutResult`, the scalar `version` and `echoes`.
    """

    def __init__(
        self,
        ticket: Ticket,
        *,
        settings: RLinfSettings,
        worker: Any,
        stage: int,
        episodes: list[dict[str, torch.Tensor]],
    ) -> None:
        self._ticket = ticket
        self._settings = settings
        self._worker = worker
        self._result = EmbodiedTrajectoryBuilder()
        self._episodes = episodes
        self._own_episodes: list[dict[str, torch.Tensor]] = []
        self._versions: list[int] = []
        env = worker.cfg.env.train
        self._every_step = bool(env.auto_reset or env.ignore_terminations)

    def append(self, output: ShardOutput, answer: dict[str, Any]) -> None:
        self._note(output, answer)
        inputs = _inputs(output, answer)
        self._result.append_step_result(
            ChunkStepResult(
                actions=inputs.get("action"),
                prev_logprobs=answer["prev_logprobs"],
                prev_values=answer["prev_values"],
                forward_inputs=inputs,
                # One version makes a whole answer; RLinf repeats it for every log-probability. Environments
                # may have set another default type, in which it would be rounded.
                versions=torch.full(
                    (len(answer["prev_logprobs"]), 1), float(answer["version"]), dtype=torch.float32
                ),
                **self._outcome(output, answer),
            )
        )
        self._versions.append(answer["version"])

    def build(self, output: ShardOutput, answer: dict[str, Any]) -> list[Piece]:
        self._note(output, answer)
        self._episodes.extend(self._own_episodes)
        self._result.append_step_result(
            ChunkStepResult(prev_values=answer["prev_values"], **self._outcome(output, answer))
        )
        plan = self._settings.plan
        bootstrap: dict[str, Any] = _inputs(output, answer) if self._settings.asynchrony.recomputes else {}
        trajectories = self._result.to_splited_trajectories_by_sizes([plan.piece_size] * plan.parts)
        payloads = [
            _payload(trajectory) | {"bootstrap_inputs": slice_samples(bootstrap, *ends)}
            for ends, trajectory in zip(plan.piece_ends, trajectories, strict=True)
        ]
        steps = self._settings.steps_per_decision
        return pieces(self._ticket, payloads, plan=plan, versions=self._versions, steps_per_decision=steps)

    def _note(self, output: ShardOutput, answer: dict[str, Any]) -> None:
        """Keep the episode statistics that RLinf would record at this point, of finite numbers."""
        env = output.env
        scores = {name: answer.get(name) for name in SCORES}
        check_answer(self._settings.asynchrony.advanced, scores, version=answer["version"])
        if env.intervene_actions is not None:
            self._result.update_last_actions(env.intervene_actions, env.intervene_flags)
        if output.info and (self._every_step or len(self._versions) == self._settings.horizon):
            self._own_episodes.append(output.info)

    def _outcome(self, output: ShardOutput, answer: dict[str, Any]) -> dict[str, Any]:
        env = output.env
        rewards = self._worker.compute_bootstrap_rewards(env, answer["bootstrap_values"], None)
        return {
            "dones": env.dones,
            "truncations": env.truncations,
            "terminations": env.terminations,
            "rewards": rewards,
        }


def _inputs(output: ShardOutput, answer: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the policy wants to be scored with."""
    return with_echoes(answer["forward_inputs"], answer["echoes"], output.env.obs)


def _payload(trajectory: Trajectory) -> dict[str, Any]:
    fields = {name: getattr(trajectory, name) for name in trajectory.__dataclass_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor | dict)}
