"""Shards and dynamic batches under RLinf's own asynchronous SAC: its loop, replay, learner and weights stay.

An env worker has one task for each of its stages, a shard: no shard waits for another. The rollout worker
answers all waiting requests when it is idle. Environments that reset themselves, reward models, interventions
and experts are left out of this prototype.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from rlinf.data.embodied_io_struct import ChunkStepResult, EmbodiedRolloutResult, EnvOutput, RolloutResult
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker

from rlinf_async.core.batching import DynamicBatcher

REQUESTS = "requests"
"""The key of all requests in the rollout worker's channel."""


@dataclass(frozen=True, eq=False)
class Request:
    """An observation of a shard that waits for its actions."""

    shard: int
    size: int
    observation: dict[str, Any]
    lap: None = None


class ShardedEnvWorker(AsyncEnvWorker):
    """RLinf's env worker, with a task of its own for every stage."""

    async def _interact(
        self,
        input_channel: Any,
        rollout_channel: Any,
        reward_channel: Any,
        actor_channel: Any,
        metric_channel: Any,
    ) -> None:
        # RLinf waits for each answer in a thread of this pool.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * self.stage_num + 4))
        shards = (
            Shard(self, stage, asks=rollout_channel, answers=input_channel) for stage in range(self.stage_num)
        )
        await asyncio.gather(*(self._go_on(shard, actor_channel, metric_channel) for shard in shards))

    async def _go_on(self, shard: Shard, actor_channel: Any, metric_channel: Any) -> None:
        while True:
            rollout, metrics = await shard.roll_out()
            await self.send_rollout_trajectories(rollout, actor_channel)
            found = {f"env/{key}": value for key, value in metrics.items()}
            metric_channel.put({"rank": self._rank, "env": found, "time": {}}, async_op=True)


class Shard:
    """The environments of one stage of an env worker. A thread of their own steps them."""

    def __init__(self, worker: Any, stage: int, *, asks: Any, answers: Any) -> None:
        self._worker, self._stage, self._asks, self._answers = worker, stage, asks, answers
        self._env = worker.env_list[stage]
        self._number = worker._rank * worker.stage_num + stage
        self._thread = ThreadPoolExecutor(1)

    async def roll_out(self) -> tuple[EmbodiedRolloutResult, dict[str, Any]]:
        """Play one rollout from its reset to its end. Returns RLinf's record of it, and its statistics."""
        worker = self._worker
        rollout = EmbodiedRolloutResult(max_episode_length=worker.cfg.env.train.max_episode_steps)
        output, info = await self._in_thread(self._reset), {}
        request = self._request(output)
        for _ in range(worker.n_train_chunk_steps):
            before = output.obs
            answer = await self._ask(request)
            rollout.append_step_result(_record(output, answer))
            output, info = await self._in_thread(self._step, answer.actions)
            # First, as RLinf's record takes the task out of the observation.
            request = self._request(output)
            rollout.append_transitions(before, output.obs)
        # RLinf asks for the policy's answer to the last observation as well, and reads nothing of it here.
        rollout.append_step_result(_record(output, None))
        self._env.update_reset_state_ids()
        return rollout, info

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _reset(self) -> EnvOutput:
        self._env.is_start = True
        observation, _ = self._env.reset()
        none = torch.zeros(self._env.num_envs, self._worker.model_cfg.num_action_chunks, dtype=torch.bool)
        return EnvOutput(obs=observation, dones=none, terminations=none.clone(), truncations=none.clone())

    def _step(self, actions: Any) -> tuple[EnvOutput, dict[str, Any]]:
        return self._worker.env_interact_step(actions, self._stage)

    def _request(self, output: EnvOutput) -> Request:
        return Request(self._number, self._env.num_envs, output.to_dict()["obs"])

    async def _ask(self, request: Request) -> RolloutResult:
        self._asks.put(request, key=REQUESTS, async_op=True)
        return await self._answers.get(key=answers_of(self._number), async_op=True).async_wait()


class DynamicRolloutWorker(AsyncMultiStepRolloutWorker):
    """RLinf's rollout worker, which answers all waiting requests when it is idle."""

    _between_passes: asyncio.Lock | None = None
    """Held by a pass, and by new weights."""

    async def _generate(self, input_channel: Any, output_channel: Any, metric_channel: Any) -> None:
        self._batcher: DynamicBatcher[Request] = DynamicBatcher(max_size=self.total_num_train_envs)
        self._arrived = asyncio.Event()
        await asyncio.gather(self._read(input_channel), self._answer(output_channel))

    async def _read(self, channel: Any) -> None:
        while True:
            request = await channel.get(key=REQUESTS, async_op=True).async_wait()
            self._batcher.add(request, asyncio.get_running_loop().time())
            self._arrived.set()

    async def _answer(self, channel: Any) -> None:
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._batcher.take(loop.time()):
                async with self._turn():
                    result = await loop.run_in_executor(thread, self._act, batch)
                answers = self._split_rollout_result(result, [request.size for request in batch])
                for request, answer in zip(batch, answers, strict=True):
                    channel.put(answer, key=answers_of(request.shard), async_op=True)

    def _act(self, batch: list[Request]) -> RolloutResult:
        merged = self._merge_obs_batches([{"obs": request.observation} for request in batch])
        actions, found = self.predict(merged["obs"])
        return RolloutResult(
            actions=actions,
            forward_inputs=found["forward_inputs"],
            versions=torch.full_like(found["prev_logprobs"], float(self.version), dtype=torch.float32),
        )

    async def sync_model_from_actor(self) -> None:
        async with self._turn():
            await super().sync_model_from_actor()

    def _turn(self) -> asyncio.Lock:
        if self._between_passes is None:
            self._between_passes = asyncio.Lock()
        return self._between_passes


def answers_of(shard: int) -> str:
    """Return the key of a shard's answers in the env workers' channel."""
    return f"answers of {shard}"


def _record(output: EnvOutput, answer: RolloutResult | None) -> ChunkStepResult:
    """Return RLinf's record of a step: the ends and rewards before it, and the answer to it."""
    found = answer.forward_inputs if answer else {}
    return ChunkStepResult(
        actions=found.get("action"),
        forward_inputs=found,
        versions=answer.versions if answer else None,
        dones=output.dones,
        truncations=output.truncations,
        terminations=output.terminations,
        rewards=None if output.rewards is None else output.rewards.clone(),
    )
