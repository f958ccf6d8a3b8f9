"""The env loop: one task per shard, and no shard waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure, first_cause
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Mode, Piece, Ticket
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.ports import PolicyPort, Recorder, ShardEnv, TrajectoryPort
from rlinf_async.observe.spans import UNRECORDED, SpanLog

FAIL_AT_ONCE = SurviveConfig(env_restarts=0)


async def nothing(_: Ticket) -> None:
    """Rollouts follow each other."""


async def run_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    trajectories: TrajectoryPort,
    recorder: Callable[[Ticket], Recorder],
    restarts: ShardRestarts | None = None,
    before: Callable[[Ticket], Awaitable[None]] = nothing,
    spans: SpanLog = UNRECORDED,
) -> None:
    """Collect rollouts until the gate closes for good; `before` each of them, its ticket is shown.

    A rollout whose environments fail is given up and collected again, once `restarts` has had them built
    anew; without it, the first failure is raised.

    Leaves the spans `gate`, `reset`, `ask` (from a request to its answer), `step` and `put`, `restart` after
    a failure, and `rollout` from the gate to the hand-over. A request and the step that takes its answer have
    the same number.
    """
    restarts = restarts or ShardRestarts(shard, FAIL_AT_ONCE)
    while True:
        with spans.span("gate", shard=shard):
            ticket = await trajectories.admit(shard)
        if ticket is None:
            return
        admitted = spans.now()
        try:
            await before(ticket)
            pieces = await _collect(shard, env, policy, recorder(ticket), spans)
        except ShardFailure as failure:
            await trajectories.abandon(ticket, failure.reason)
            await restarts.restart(env, failure, loss=f"a rollout for batch {ticket.batch}")
            continue
        await _hand_over(ticket, pieces, trajectories, spans, admitted)
        restarts.worked()


async def _collect(
    shard: int, env: ShardEnv, policy: PolicyPort, record: Recorder, spans: SpanLog
) -> Sequence[Piece]:
    async with policy.rollout(shard):
        with spans.span("reset", shard=shard):
            output = await env.start()
        for number in islice(REQUEST_NUMBERS, env.horizon):
            answer = await _ask(shard, number, env, policy, output, "train", spans)
            record.append(output, answer)
            with spans.span("step", shard=shard, number=number):
                output = await env.step(answer)
        # For its value: the rollout is cut here.
        answer = await _ask(shard, next(REQUEST_NUMBERS), env, policy, output, "train", spans)
    env.finish()
    return record.build(output, answer)


async def evaluate_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    rollouts: int,
    restarts: ShardRestarts | None = None,
    spans: SpanLog = UNRECORDED,
) -> None:
    """Run `rollouts` rollouts with the policy's evaluation actions; `env` keeps what it sees.

    One whose environments fail is run again, once `restarts` has had them built anew.
    """
    restarts, remaining = restarts or ShardRestarts(shard, FAIL_AT_ONCE), rollouts
    while remaining:
        try:
            async with policy.rollout(shard):
                output = await env.start()
                for number in islice(REQUEST_NUMBERS, env.horizon):
                    output = await env.step(await _ask(shard, number, env, policy, output, "eval", spans))
            env.finish()
        except ShardFailure as failure:
            await restarts.restart(env, failure, loss="a rollout of the evaluation")
            continue
        restarts.worked()
        remaining -= 1


async def _ask(
    shard: int, number: int, env: ShardEnv, policy: PolicyPort, output: Any, mode: Mode, spans: SpanLog
) -> Any:
    payload = env.observation(output)
    request = ActionRequest(shard=shard, number=number, size=env.size, payload=payload, mode=mode)
    facts = {"mode": mode} if mode != "train" else {}
    with spans.span("ask", shard=shard, number=number, **facts):
        return await policy.act(request)


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
        cause = first_cause([errors])
        raise cause from cause.__cause__ or errors
