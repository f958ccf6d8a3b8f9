"""The request channel of a node, with a fixed number of requests in each batch: its CPU time for one take.

In `channels` a batch has as many requests as have come meanwhile, which depends on what else the machine
does. Here a rank takes as soon as all shards have sent their requests, so that two versions of the code can
be compared on a machine that others use.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Any

import torch

from benchmarks.micro.channels import Case, _begin, _channels
from benchmarks.micro.kit import settings_of
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer

PASS_S = 0.01
WARM_UP_TAKES, MEASURED_TAKES = 50, 300
SIZES = (1, 4, 20)
"""Requests in a batch: where a rank is nearly idle, and those of a node of three nodes and of one in
`channels`."""
NODE = "node 0"


async def _channel(shards: int, pipe: Any) -> float:
    plan = ShardPlan(
        total_envs=shards, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=1
    )
    channel = RequestChannel(settings_of(plan).common())
    pipe.send({NODE: await channel.address(NODE)})
    await asyncio.to_thread(pipe.recv)
    before = time.process_time()
    pipe.send("begin")
    await asyncio.to_thread(pipe.recv)
    cpu_s = time.process_time() - before
    await channel.close_requests()
    return 1e6 * cpu_s / MEASURED_TAKES


async def _take(client: RequestClient, server: RequestServer, shards: int, numbers: Any) -> None:
    """Have the shards send their requests during a pass, and answer them in one batch."""
    payload = {"states": torch.zeros(8)}

    async def ask(shard: int) -> None:
        await asyncio.sleep(PASS_S * shard / (shards + 1))
        await client.act(ActionRequest(shard=shard, number=next(numbers), size=1, payload=payload))

    askers = [asyncio.create_task(ask(shard)) for shard in range(shards)]
    await asyncio.sleep(PASS_S)
    left = shards
    while left:
        batch = await server.take()
        async with server.answering(batch or []) as answers:
            answers += [{"version": 0, "actions": torch.zeros(1, 4)}] * len(batch or [])
        left -= len(batch or [])
    await asyncio.gather(*askers)


async def _drive(shards: int, address: Any, pipe: Any) -> None:
    channels = _channels(Case(shards=(shards,), channels=1), [address])
    client, server, numbers = RequestClient(channels), RequestServer(channels, rank=0), itertools.count()
    for _ in range(WARM_UP_TAKES):
        await _take(client, server, shards, numbers)
    pipe.send("begin")
    pipe.recv()
    for _ in range(MEASURED_TAKES):
        await _take(client, server, shards, numbers)
    pipe.send("end")


def us_per_take(shards: int) -> float:
    """Return the CPU microseconds of a channel for a take that brings the requests of `shards`."""
    channel, of_channel = _begin(NODE, partial(_channel, shards))
    driver, of_driver = _begin(NODE, partial(_drive, shards, of_channel.recv()))
    of_driver.recv()  # it has warmed up
    of_channel.send("begin")
    of_driver.send(of_channel.recv())
    of_channel.send(of_driver.recv())
    found: float = of_channel.recv()
    for process in (driver, channel):
        process.join()
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Measure all sizes by turns; every round is kept."""
    seen: dict[str, list[float]] = {str(size): [] for size in SIZES}
    for _ in range(rounds):
        for size in SIZES:
            seen[str(size)].append(round(us_per_take(size), 1))
    return {"takes": MEASURED_TAKES, "pass_s": PASS_S, "us_per_take": seen}
