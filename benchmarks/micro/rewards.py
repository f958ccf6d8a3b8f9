"""Seconds of a rollout with an emulated reward model: waited for in each step, as RLinf does, and beside it.

The env loop, the queue of rewards and the gate are real; simulators, inference and reward model only wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import torch

from benchmarks.micro.kit import medians
from rlinf_async.core.sharding import ShardPlan, pieces
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.hosts.rlinf.rewards import RewardQueue, ShardRewards
from rlinf_async.hosts.rlinf.trajectory import EnvStep
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import TrajectoryBroker

STEP_S, REWARD_S = 0.1, 0.05
DECISIONS, ROLLOUTS = 10, 3
SHARD_COUNTS = (1, 4, 16)
ENVS_PER_SHARD = 2
Way = Literal["none", "waited for", "beside"]
WAYS: tuple[Way, ...] = ("none", "waited for", "beside")


class Emulated:
    """Environments of one shard; fills `loops.ports.ShardEnv`."""

    horizon = DECISIONS

    def __init__(self, rewards: ShardRewards | None, *, waits: bool) -> None:
        self._rewards, self._waits = rewards, waits

    async def start(self) -> EnvStep:
        return _step()

    async def step(self, answer: object) -> EnvStep:
        await asyncio.sleep(STEP_S)
        made = _step()
        if self._rewards is not None:
            self._rewards.begin(made)
            if self._waits:
                await made.scored()
        return made

    def waiting(self, output: EnvStep) -> int:
        return ENVS_PER_SHARD

    def observation(self, output: EnvStep) -> dict[str, Any]:
        return output.obs

    async def finish(self) -> None:
        """The next rollout begins at once."""

    async def restart(self) -> None:
        """Emulated environments do not fail."""


def _step() -> EnvStep:
    ends = torch.zeros(ENVS_PER_SHARD, 1, dtype=torch.bool)
    states = torch.zeros(ENVS_PER_SHARD, 4)
    return EnvStep(obs={"states": states}, rewards=torch.zeros(ENVS_PER_SHARD, 1), dones=ends)


class AnsweringAtOnce:
    """Inference that takes no time; fills `loops.ports.PolicyPort`."""

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        yield

    async def act(self, request: ActionRequest) -> None:
        return None


class Recorder:
    """Keeps the steps until they are scored; fills `loops.ports.Recorder`."""

    def __init__(self, ticket: Ticket, plan: ShardPlan) -> None:
        self._ticket, self._plan = ticket, plan
        self._steps: list[EnvStep] = []

    def append(self, output: EnvStep, answer: None) -> None:
        self._steps.append(output)

    async def complete(self, output: EnvStep) -> None:
        for step in (*self._steps, output):
            await step.scored()

    def build(self, output: EnvStep, answer: None) -> list[Piece]:
        payloads = [None] * len(self._plan.piece_ends)
        return pieces(self._ticket, payloads, plan=self._plan, versions=[0] * DECISIONS, horizon=DECISIONS)


async def _rollouts(shards: int, way: Way) -> dict[str, float]:
    plan = ShardPlan(
        total_envs=shards * ENVS_PER_SHARD,
        env_workers=1,
        inference_ranks=1,
        learner_ranks=1,
        shards_per_worker=shards,
    )
    broker = TrajectoryBroker(plan, max_staleness=ROLLOUTS, until=ROLLOUTS)
    calls = 0

    async def score(shown: dict[str, Any]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        await asyncio.sleep(REWARD_S)
        return torch.zeros(len(shown["dones"]), 1)

    def env() -> Emulated:
        rewards = None if way == "none" else ShardRewards({}, queue, ENVS_PER_SHARD)
        return Emulated(rewards, waits=way == "waited for")

    queue = RewardQueue(score, most_environments=plan.total_envs)
    began = time.perf_counter()
    await together(
        run_shard(
            shard=shard,
            env=env(),
            policy=AnsweringAtOnce(),
            trajectories=broker,
            recorder=lambda ticket: Recorder(ticket, plan),
            overlaps=True,
        )
        for shard in range(shards)
    )
    return {"seconds": time.perf_counter() - began, "calls": float(calls)}


def measure(rounds: int, most_shards: int) -> dict[str, Any]:
    """Measure all ways by turns; return medians over the rounds, for each number of shards up to
    `most_shards`.
    """
    result: dict[str, Any] = {"rounds": rounds, "step_s": STEP_S, "reward_s": REWARD_S}
    for shards in (count for count in SHARD_COUNTS if count <= most_shards):
        seen: dict[Way, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                seen[way].append(asyncio.run(_rollouts(shards, way)))
        result[f"{shards} shards"] = {way: medians(found) for way, found in seen.items()}
    return result
