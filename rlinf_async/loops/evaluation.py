"""The env loop of an evaluation; that of training is `loops.env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.env import FAIL_AT_ONCE, ask, request_of
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.observe.spans import UNRECORDED, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import PolicyPort, ShardEnv


async def evaluate_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    rollouts: int,
    restarts: ShardRestarts | None = None,
    spans: SpanLog = UNRECORDED,
) -> None:
    """Run `rollouts` rollouts with the policy's evaluation actions; `env` collects the statistics.

    If the environments fail, `restarts` has them rebuilt, and the rollout is run again.
    """
    restarts, remaining = restarts or ShardRestarts(shard, FAIL_AT_ONCE), rollouts
    while remaining:
        try:
            async with policy.rollout(shard):
                output = await env.start()
                for _ in range(env.horizon):
                    request = request_of(shard, env, output, mode="eval")
                    if request is None:
                        break
                    output = await env.step(await ask(request, policy, spans))
            await env.finish()
        except ShardFailure as failure:
            await restarts.restart(env, failure, loss="a rollout of the evaluation")
            continue
        restarts.worked()
        remaining -= 1
