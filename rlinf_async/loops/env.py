"""The env loop: one task per shard, and no shard waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from rlinf_async.core.failures import first_cause
from rlinf_async.core.spans import UNRECORDED, SpanLog
from rlinf_async.core.types import ActionRequest, Mode, Piece, Ticket
from rlinf_async.loops.ports import PolicyPort, Recorder, ShardEnv, TrajectoryPort


async def run_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    trajectories: TrajectoryPort,
    recorder: Callable[[Ticket], Recorder],
    spans: SpanLog = UNRECORDED,
) -> None:
    """Collect rollouts until the gate closes for good.

    Leaves the spans `gate`, `reset`, `ask` (from a request to its answer), `step` and `put`, and `rollout`
    from the gate to the hand-over.
    """
    while True:
        with spans.span("gate", shard=shard):
            ticket = await trajectories.admit(shard)
        if ticket is None:
            return
        admitted = spans.now()
        record = recorder(ticket)
        async with policy.rollout(shard):
            with spans.span("reset", shard=shard):
                output = await env.start()
            for _ in range(env.horizon):
                answer = await _ask(shard, env, policy, output, "train", spans)
                record.append(output, answer)
                with spans.span("step", shard=shard):
                    output = await env.step(answer)
            # For its value: the rollout is cut here.
            answer = await _ask(shard, env, policy, output, "train", spans)
        env.finish()
        await _hand_over(ticket, record.build(output, answer), trajectories, spans, admitted)


async def evaluate_shard(
    *, shard: int, env: ShardEnv, policy: PolicyPort, rollouts: int, spans: SpanLog = UNRECORDED
) -> None:
    """Run `rollouts` rollouts with the policy's evaluation actions; `env` keeps what it sees."""
    for _ in range(rollouts):
        async with policy.rollout(shard):
            output = await env.start()
            for _ in range(env.horizon):
                output = await env.step(await _ask(shard, env, policy, output, "eval", spans))
        env.finish()


async def _ask(shard: int, env: ShardEnv, policy: PolicyPort, output: Any, mode: Mode, spans: SpanLog) -> Any:
    payload = env.observation(output)
    facts = {"mode": mode} if mode != "train" else {}
    with spans.span("ask", shard=shard, **facts):
        return await policy.act(ActionRequest(shard=shard, size=env.size, payload=payload, mode=mode))


async def _hand_over(
    ticket: Ticket, pieces: Sequence[Piece], trajectories: TrajectoryPort, spans: SpanLog, admitted: float
) -> None:
    names = {"shard": ticket.shard, "batch": ticket.batch, "epoch": ticket.epoch, "place": ticket.place}
    oldest, newest = min(piece.oldest for piece in pieces), max(piece.newest for piece in pieces)
    with spans.span("put", **names):
        await trajectories.put(ticket, pieces)
    spans.add("rollout", admitted, **names, version=ticket.version, oldest=oldest, newest=newest)


async def together(loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run loops side by side; the first failure ends them all and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except BaseExceptionGroup as errors:
        raise first_cause([errors]) from errors
