"""One environment shard of an RLinf env worker, as the env loop sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import torch
from rlinf.envs.utils import get_env_attr

from rlinf_async.core.tracing import BusyMeter
from rlinf_async.hosts.rlinf.compat import EnvOutput, interact_step, wait_env_delay


@dataclass(frozen=True)
class ShardOutput:
    """What the environments showed, with the episode statistics that came with it."""

    env: EnvOutput
    info: dict[str, torch.Tensor] = field(default_factory=dict)


class TrainShard:
    """Training environments of one stage; fills `loops.ports.ShardEnv` with RLinf's own stepping."""

    def __init__(self, worker: Any, stage: int, thread: Executor, busy: BusyMeter) -> None:
        self._worker = worker
        self._stage = stage
        self._thread = thread
        self._busy = busy
        self._env = worker.env_list[stage]
        self._cfg = worker.cfg.env.train
        self._last: EnvOutput | None = None

    @property
    def size(self) -> int:
        return self._worker.train_num_envs_per_stage

    @property
    def horizon(self) -> int:
        return self._worker.n_train_chunk_steps

    async def start(self) -> ShardOutput:
        return await self._run(self._start)

    async def step(self, answer: Any) -> ShardOutput:
        return await self._run(self._step, answer)

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        """What RLinf's rollout worker reads of an env output."""
        batch = output.env.to_dict()
        return {"obs": batch["obs"], "final_obs": batch["final_obs"]}

    def finish(self) -> None:
        if self._cfg.video_cfg.save_video:
            flush = get_env_attr(self._env, "flush_video")
            if callable(flush):
                flush()
        self._env.update_reset_state_ids()

    def _start(self) -> ShardOutput:
        nothing_done = torch.zeros((self.size, self._worker.model_cfg.num_action_chunks), dtype=torch.bool)
        if self._cfg.auto_reset:
            intervened = self._worker.last_intervened_info_list[self._stage]
            last = self._last
            observation = self._worker.last_obs_list[self._stage] if last is None else last.obs
            if last is not None:
                intervened = (last.intervene_actions, last.intervene_flags)
            output = EnvOutput(
                obs=observation,
                dones=nothing_done,
                terminations=nothing_done.clone(),
                truncations=nothing_done.clone(),
                intervene_actions=intervened[0],
                intervene_flags=intervened[1],
            )
        else:
            self._env.is_start = True
            observation, infos = self._env.reset()
            output = EnvOutput(
                obs=observation,
                final_obs=infos.get("final_observation"),
                dones=nothing_done,
                terminations=nothing_done.clone(),
                truncations=nothing_done.clone(),
            )
        return ShardOutput(output)

    def _step(self, answer: dict[str, Any]) -> ShardOutput:
        self._last, info = interact_step(self._worker, answer["actions"], self._stage)
        return ShardOutput(self._last, info)

    async def _run(self, function: Callable[..., ShardOutput], *arguments: Any) -> ShardOutput:
        with self._busy.busy(self._stage):
            output = await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
            await wait_env_delay(self._worker, self._stage)
        return output


class EvalShard:
    """Evaluation environments of one stage; collects their episode statistics."""

    def __init__(self, worker: Any, stage: int, thread: Executor) -> None:
        self._worker = worker
        self._stage = stage
        self._thread = thread
        self._env = worker.eval_env_list[stage]
        self._cfg = worker.cfg.env.eval
        self._last: EnvOutput | None = None
        self.episodes: list[dict[str, torch.Tensor]] = []

    @property
    def size(self) -> int:
        return self._worker.eval_num_envs_per_stage

    @property
    def horizon(self) -> int:
        return self._worker.n_eval_chunk_steps

    async def start(self) -> EnvOutput:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def step(self, answer: dict[str, Any]) -> EnvOutput:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._step, answer)

    def observation(self, output: EnvOutput) -> dict[str, Any]:
        batch = output.to_dict()
        return {"obs": batch["obs"], "final_obs": None}

    def finish(self) -> None:
        if self._cfg.video_cfg.save_video:
            flush = get_env_attr(self._env, "flush_video")
            if callable(flush):
                flush()
        if not self._cfg.auto_reset:
            self._env.update_reset_state_ids()

    def _start(self) -> EnvOutput:
        if self._cfg.auto_reset and self._last is not None:
            return self._last
        self._env.is_start = True
        self._worker.eval_prev_done[self._stage] = torch.zeros(self.size, dtype=torch.bool)
        observation, _ = self._env.reset()
        return EnvOutput(obs=observation)

    def _step(self, answer: dict[str, Any]) -> EnvOutput:
        actions = answer["actions"].detach().cpu().numpy()
        self._last, info = self._worker.env_evaluate_step(actions, self._stage)
        if info:
            self.episodes.append(info)
        return self._last
