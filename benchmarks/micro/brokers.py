"""Action requests through the brokers, which wait around the decisions of `core`, in one event loop."""

from __future__ import annotations

import asyncio
import time

from benchmarks.micro.core import MAX_BATCH, piece_of
from benchmarks.micro.kit import single_worker_plan
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker

DEADLINE_S = 600.0
REQUEST_COUNT = 40_000
"""Approximate number of requests in one measurement."""


async def _shard(shard: int, requests: RequestBroker, trajectories: TrajectoryBroker, decisions: int) -> None:
    while (ticket := await trajectories.admit(shard)) is not None:
        await asyncio.sleep(0)  # every shard begins before the first one hands over
        for number in range(decisions):
            await requests.act(ActionRequest(shard=shard, number=number, size=1, payload=None))
        await trajectories.put(ticket, [piece_of(ticket)])


async def _inference(requests: RequestBroker) -> None:
    while (batch := await requests.take(0)) is not None:
        requests.reply([pending.key for pending in batch], batch)


async def _learner(trajectories: TrajectoryBroker, batches: int) -> None:
    for batch in range(batches):
        await trajectories.take(0, batch, whole=True)
        trajectories.publish(batch + 1)


async def _run(shards: int, *, batches: int, decisions: int, tasks: bool) -> None:
    plan = single_worker_plan(shards)
    requests = RequestBroker(SharedQueues(max_size=MAX_BATCH, max_wait=0.0, deadline_s=DEADLINE_S))
    trajectories = TrajectoryBroker(
        plan, max_staleness=0, any_place=tasks, until=batches, deadline_s=DEADLINE_S
    )
    serving = asyncio.create_task(_inference(requests))
    await asyncio.gather(
        _learner(trajectories, batches),
        *(_shard(shard, requests, trajectories, decisions) for shard in range(shards)),
    )
    requests.close()
    await serving


def cpu_seconds(shards: int, *, batches: int, decisions: int, tasks: bool) -> float:
    """Return the CPU time of `batches` batches; all shards wait at the gate for every version."""
    began = time.process_time()
    asyncio.run(_run(shards, batches=batches, decisions=decisions, tasks=tasks))
    return time.process_time() - began
