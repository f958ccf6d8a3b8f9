"""The request channels of several nodes without Ray: CPU time of a request, with one and with several.

Every process of a node is a process here: its env worker, its inference rank, and its request channel if it
has one. Processes of one node use unix sockets, and those of different nodes TCP, as in a run.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.micro.kit import settings_of
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.inference import serve_policy
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from rlinf_async.ray_runtime.processes.run_process import exempt_present_objects
from rlinf_async.wire import connection, nodes

PAUSE_S = 1.0
"""The mean pause of a shard between an answer and its next request."""
PASS_S = 0.01
"""Seconds of a forward pass without samples."""
WARM_UP_S, MEASURED_S = 4.0, 10.0
TOTAL_SHARDS = 1024
FORK = multiprocessing.get_context("fork")
Addresses = Sequence[Mapping[str, Any]]
"""The address of each channel, by the node that connects to it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The shards of each node, which has a rank, and the number of channels."""

    shards: tuple[int, ...]
    channels: int
    sample_s: float = 0.0005
    """Seconds that a sample adds to a forward pass; nothing is computed."""

    @property
    def nodes(self) -> list[str]:
        return [f"node {number}" for number in range(len(self.shards))]


def _even(nodes: int) -> tuple[int, ...]:
    return tuple(len(range(node, TOTAL_SHARDS, nodes)) for node in range(nodes))


OVERLOADED = (824, 100, 100)
"""At 1.5 ms a sample a rank makes 667 decisions a second at most."""
CASES = {
    "1 node": Case(shards=_even(1), channels=1),
    "2 nodes, one channel": Case(shards=_even(2), channels=1),
    "2 nodes, a channel each": Case(shards=_even(2), channels=2),
    "3 nodes, one channel": Case(shards=_even(3), channels=1),
    "3 nodes, a channel each": Case(shards=_even(3), channels=3),
    "3 nodes, one overloaded, one channel": Case(shards=OVERLOADED, channels=1, sample_s=0.0015),
    "3 nodes, one overloaded, a channel each": Case(shards=OVERLOADED, channels=3, sample_s=0.0015),
}


def _on(node: str) -> None:
    """Have this process take itself to be on `node` of several."""
    this_node = nodes.this_node
    # Modules have imported the function by its name.
    for module in list(sys.modules.values()):
        if vars(module).get("this_node") is this_node:
            vars(module)["this_node"] = lambda: node
    vars(connection)["has_other_nodes"] = lambda: True


async def _cpu_between(begins: float, ends: float) -> float:
    """Return the CPU seconds of this process between two times of the monotonic clock."""
    await asyncio.sleep(begins - time.monotonic())
    before = time.process_time()
    await asyncio.sleep(ends - time.monotonic())
    return time.process_time() - before


async def _channel(case: Case, pipe: Any) -> dict[str, Any]:
    plan = ShardPlan(
        total_envs=TOTAL_SHARDS, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=1
    )
    channel = RequestChannel(settings_of(plan).common())
    pipe.send({node: await channel.address(node) for node in case.nodes})
    begins, ends = await asyncio.to_thread(pipe.recv)
    await asyncio.sleep(begins - time.monotonic())
    before = (await channel.waited()).count
    cpu_s = await _cpu_between(begins, ends)
    requests = (await channel.waited()).count - before
    await asyncio.to_thread(pipe.recv)  # the shards have ended
    await channel.close_requests()
    await asyncio.to_thread(pipe.recv)  # the ranks have ended: one may still look here
    return {"requests": requests, "cpu_s": cpu_s}


def _channels(case: Case, addresses: Addresses) -> dict[str, Any]:
    async def address(of: Mapping[str, Any], node: str) -> Any:
        return of[node]

    return {
        node: SimpleNamespace(address=SimpleNamespace(remote=partial(address, of)))
        for node, of in zip(case.nodes, addresses, strict=False)
    }


async def _env_worker(case: Case, number: int, pipe: Any) -> dict[str, Any]:
    addresses, (begins, ends) = await asyncio.to_thread(pipe.recv)
    client, numbers = RequestClient(_channels(case, addresses)), itertools.count()
    seconds: list[float] = []

    async def shard(name: int) -> None:
        payload = {"states": torch.zeros(8)}
        await asyncio.sleep(PAUSE_S * random.random())
        while (asked := time.monotonic()) < ends + 1.0:
            await client.act(ActionRequest(shard=name, number=next(numbers), size=1, payload=payload))
            if begins <= asked < ends:
                seconds.append(time.monotonic() - asked)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5))

    first = sum(case.shards[:number])
    shards = (shard(name) for name in range(first, first + case.shards[number]))
    cpu_s, *_ = await asyncio.gather(_cpu_between(begins, ends), *shards)
    return {"seconds": sorted(seconds), "cpu_s": cpu_s}


async def _rank(case: Case, number: int, pipe: Any) -> dict[str, Any]:
    addresses, (begins, ends) = await asyncio.to_thread(pipe.recv)
    server, far = RequestServer(_channels(case, addresses), rank=number), 0
    own = case.nodes[number]

    async def act(batch: Sequence[Any]) -> list[Any]:
        nonlocal far
        far += sum(pending.request.node != own for pending in batch)
        await asyncio.sleep(PASS_S + case.sample_s * len(batch))
        return [{"version": 0, "actions": torch.zeros(1, 4)} for _ in batch]

    serving = serve_policy(requests=server, policy=SimpleNamespace(act=act))
    cpu_s, _ = await asyncio.gather(_cpu_between(begins, ends), serving)
    return {"far": far, "cpu_s": cpu_s}


def _begin(node: str, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> tuple[Any, Any]:
    ours, theirs = FORK.Pipe()

    def live() -> None:
        _on(node)
        exempt_present_objects()  # as a process of a run does
        theirs.send(asyncio.run(work(theirs)))

    process = FORK.Process(target=live)
    process.start()
    return process, ours


def observe(case: Case) -> dict[str, float]:
    """Run a case; return CPU microseconds of a request, and the measurements of the shards."""
    nodes = case.nodes
    channels = [_begin(node, partial(_channel, case)) for node in nodes[: case.channels]]
    addresses = [pipe.recv() for _, pipe in channels]
    workers = [_begin(node, partial(_env_worker, case, number)) for number, node in enumerate(nodes)]
    ranks = [_begin(node, partial(_rank, case, number)) for number, node in enumerate(nodes)]
    begins = time.monotonic() + WARM_UP_S
    measured = begins, begins + MEASURED_S
    for _, pipe in channels:
        pipe.send(measured)
    for _, pipe in workers + ranks:
        pipe.send((addresses, measured))
    envs = [pipe.recv() for _, pipe in workers]
    for _, pipe in channels:
        pipe.send("close")
    served = [pipe.recv() for _, pipe in ranks]
    for _, pipe in channels:
        pipe.send("end")
    heard = [pipe.recv() for _, pipe in channels]
    for process, _ in channels + workers + ranks:
        process.join()
    seconds = sorted(second for env in envs for second in env["seconds"])
    requests = sum(channel["requests"] for channel in heard)
    fullest = max(heard, key=lambda channel: channel["cpu_s"])
    return {
        "requests_per_s": requests / MEASURED_S,
        "us_per_request_of_a_channel": 1e6 * sum(channel["cpu_s"] for channel in heard) / requests,
        "us_of_the_fullest_channel_per_request_of_the_run": 1e6 * fullest["cpu_s"] / requests,
        "us_per_request_of_all_processes": 1e6
        * sum(process["cpu_s"] for process in (*heard, *envs, *served))
        / requests,
        "share_answered_by_another_node": sum(rank["far"] for rank in served) / requests,
        "p50_ms": 1000 * seconds[len(seconds) // 2],
        "p99_ms": 1000 * seconds[len(seconds) * 99 // 100],
    }


def measure(rounds: int) -> dict[str, Any]:
    """Measure all cases by turns; every round is kept."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, case in CASES.items():
            seen[name].append({what: round(value, 3) for what, value in observe(case).items()})
    return {"shards": TOTAL_SHARDS, "pause_s": PAUSE_S, "rounds": rounds, "cases": seen}
