"""The env loop: one task per shard, and no shard waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from rlinf_async.core.failures import first_cause
from rlinf_async.core.types import ActionRequest, Mode, Ticket
from rlinf_async.loops.ports import PolicyPort, Recorder, ShardEnv, TrajectoryPort


async def run_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    trajectories: TrajectoryPort,
    recorder: Callable[[Ticket], Recorder],
) -> None:
    """Collect rollouts until the gate closes for good."""
    while (ticket := await trajectories.admit(shard)) is not None:
        record = recorder(ticket)
        async with policy.rollout(shard):
            output = await env.start()
            for _ in range(env.horizon):
                answer = await _ask(shard, env, policy, output, "train")
                record.append(output, answer)
                output = await env.step(answer)
            answer = await _ask(shard, env, policy, output, "train")  # for its value: the rollout is cut here
        env.finish()
        await trajectories.put(ticket, record.build(output, answer))


async def evaluate_shard(*, shard: int, env: ShardEnv, policy: PolicyPort, rollouts: int) -> None:
    """Run `rollouts` rollouts with the policy's evaluation actions; `env` keeps what it sees."""
    for _ in range(rollouts):
        async with policy.rollout(shard):
            output = await env.start()
            for _ in range(env.horizon):
                output = await env.step(await _ask(shard, env, policy, output, "eval"))
        env.finish()


async def _ask(shard: int, env: ShardEnv, policy: PolicyPort, output: Any, mode: Mode) -> Any:
    payload = env.observation(output)
    return await policy.act(ActionRequest(shard=shard, size=env.size, payload=payload, mode=mode))


async def together(loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run loops side by side; the first failure ends them all and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except BaseExceptionGroup as errors:
        raise first_cause([errors]) from errors
