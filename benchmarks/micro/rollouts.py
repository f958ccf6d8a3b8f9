"""A rollout's way from gate to learner, without simulators, inference and training."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import ray
import torch

from benchmarks.micro.kit import cpu_seconds, medians, settings_of, single_worker_plan
from rlinf_async.core.types import Piece
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.rollout_data import HeldPieces, PieceClient, TrajectoryClient
from rlinf_async.wire.connection import Address

WARM_UP_BATCHES = 2
MEASURED_BATCHES = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """`shards` shards of one env worker; a rollout has `numbers` float32 numbers and takes `seconds`."""

    shards: int
    numbers: int
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.shards} x {4 * self.numbers / 1000:g} kB" + (
            f", {self.seconds:g} s each" if self.seconds else ""
        )


ROLLOUT_CASES = (
    Case(shards=1, numbers=25_000),
    Case(shards=64, numbers=25_000),
    Case(shards=64, numbers=250_000),
    Case(shards=64, numbers=25_000, seconds=0.3),
)


class Collecting:
    """An env worker with environments that take no time."""

    async def run(self, coordinator: Any, case: Case) -> list[float]:
        """Collect; return the seconds of each rollout between its stages: admission and delivery."""
        client = TrajectoryClient(coordinator)
        shards = (_collect(client, shard, case) for shard in range(case.shards))
        return [seconds for times in await asyncio.gather(*shards) for seconds in times]


async def _collect(client: TrajectoryClient, shard: int, case: Case) -> list[float]:
    times: list[float] = []
    payload = {"rewards": torch.rand(case.numbers)}
    while True:
        began = time.perf_counter()
        ticket = await client.admit(shard)
        admitted = time.perf_counter()
        if ticket is None:
            return times[WARM_UP_BATCHES:]
        await asyncio.sleep(case.seconds * random.uniform(0.5, 1.5))
        piece = Piece(
            ticket=ticket,
            part=0,
            rank=0,
            size=1,
            oldest=ticket.version,
            newest=ticket.version,
            env_steps=1,
            payload=payload,
        )
        ended = time.perf_counter()
        await client.put(ticket, [piece])
        times.append(time.perf_counter() - ended + admitted - began)


class Learning:
    """A learner rank that trains in no time."""

    def __init__(self) -> None:
        self._held = HeldPieces()

    async def piece_address(self) -> Address:
        return self._held.address()

    async def run(self, coordinator: Any, batches: int) -> None:
        client = PieceClient(coordinator, self._held, rank=0)
        for batch in range(batches):
            last = False
            while not last:
                _, last = await client.take(batch, whole=False)


def _settings(case: Case) -> RunSettings:
    """Return settings with a staleness bound that lets all batches be collected at once."""
    return settings_of(
        single_worker_plan(case.shards),
        batches=WARM_UP_BATCHES + MEASURED_BATCHES,
        micro_batch_size=1,
        max_staleness=2 * MEASURED_BATCHES,
    )


def _actor(cls: type, *arguments: object) -> Any:
    return ray.remote(cls).options(num_cpus=0, max_concurrency=10_000).remote(*arguments)


def _observe(case: Case) -> dict[str, float]:
    settings = _settings(case)
    cpu: list[float] = []
    coordinator, learner, env = _actor(Coordinator, settings, 0), _actor(Learning), _actor(Collecting)
    ray.get([actor.__ray_ready__.remote() for actor in (coordinator, learner, env)])
    ray.get(coordinator.introduce.remote(ray.get([learner.piece_address.remote()])))
    with cpu_seconds(cpu):
        learning = learner.run.remote(coordinator, settings.batches)
        times = ray.get(env.run.remote(coordinator, case))
        ray.get(learning)
    for actor in (coordinator, learner, env):
        ray.kill(actor)
    return {
        "p50_ms": 1000 * statistics.median(times),
        "p99_ms": 1000 * sorted(times)[len(times) * 99 // 100],
        "cpu_ms_per_rollout": 1000 * cpu[0] / (settings.batches * case.shards),
    }


def measure(rounds: int) -> dict[str, Any]:
    """Measure all cases; return medians over the rounds."""
    os.environ.setdefault("RAY_ADDRESS", "local")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.init(log_to_driver=False, include_dashboard=False)
    seen = {case.name: [_observe(case) for _ in range(rounds)] for case in ROLLOUT_CASES}
    ray.shutdown()
    return {
        "rounds": rounds,
        "shards x size of a rollout": {name: medians(observed) for name, observed in seen.items()},
    }
