"""The env side of a planned run: shards that take their time, and records of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.sharding import ShardPlan, pieces
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.lab.virtual.times import Seconds, SimulatorBatch, Times, WayTimes
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.observe.meters import BusyMeter


class Worker:
    """The common resources of one env worker's shards: process, cores, and a vectorised simulator."""

    def __init__(self, times: Times) -> None:
        self.process = asyncio.Lock()
        self._cores = asyncio.Semaphore(times.cores) if times.cores else None
        self._simulator = asyncio.Lock() if times.simulators.vectorised else None

    async def simulate(self, each: Seconds) -> None:
        """Last as long as environments that take `each` do on the cores that are free."""
        if self._simulator is not None:
            async with self._simulator:
                await asyncio.sleep(max(each))
        elif self._cores is None:
            await asyncio.sleep(max(each))
        else:
            await asyncio.gather(*(self._on_core(self._cores, seconds) for seconds in each))

    async def _on_core(self, cores: asyncio.Semaphore, seconds: float) -> None:
        async with cores:
            await asyncio.sleep(seconds)


class VirtualShard:
    """Fills `loops.ports.ShardEnv`; outputs are nothing, answers the version that acted."""

    def __init__(
        self,
        number: int,
        *,
        batch: SimulatorBatch,
        plan: ShardPlan,
        horizon: int,
        worker: Worker,
        busy: BusyMeter,
    ) -> None:
        self.size, self.horizon = plan.envs_per_shard, horizon
        self._number, self._batch, self._worker = number, batch, worker
        self._busy = busy

    async def start(self) -> None:
        with self._busy.busy(self._number):
            await self._worker.simulate(self._batch.reset())

    async def step(self, answer: int) -> None:
        with self._busy.busy(self._number):
            await self._worker.simulate(self._batch.step())

    def waiting(self, output: None) -> int:
        return self.size

    def observation(self, output: None) -> None:
        """Show nothing."""

    def take_on(self, place: int, rollout: int) -> None:
        self._batch.take_on(place * self.size)

    async def finish(self) -> None:
        """The next initial states cost nothing before they are reset to."""

    async def restart(self) -> None:
        """Planned environments do not fail."""


class VirtualRecorder:
    """Keeps the versions that acted; fills `loops.ports.Recorder`."""

    def __init__(self, ticket: Ticket, plan: ShardPlan) -> None:
        self._ticket, self._plan = ticket, plan
        self._versions: list[int] = []

    def append(self, output: None, answer: int) -> None:
        self._versions.append(answer)

    def build(self, output: None, answer: int) -> Sequence[Piece]:
        return pieces(self._ticket, [None] * self._plan.parts, plan=self._plan, versions=self._versions)


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The way of an env worker's requests to the broker and back; fills `loops.ports.PolicyPort`."""

    requests: RequestBroker
    way: WayTimes
    worker: Worker

    def rollout(self, shard: int) -> AbstractAsyncContextManager[None]:
        return self.requests.rollout(shard)

    async def act(self, request: ActionRequest) -> Any:
        half = self.way.request_s / 2
        await self._handle()
        await _pass(half)
        answer = await self.requests.act(request)
        await _pass(half)
        await self._handle()
        return answer

    async def _handle(self) -> None:
        """Take the time of the env worker's process for a request, and again for its answer."""
        if self.way.worker_s:
            async with self.worker.process:
                await asyncio.sleep(self.way.worker_s / 2)


class HandOver:
    """The way of rollouts to the buffer; fills `loops.ports.TrajectoryPort`."""

    def __init__(self, trajectories: TrajectoryBroker, way: WayTimes) -> None:
        self._trajectories, self._way = trajectories, way

    async def admit(self, shard: int) -> Ticket | None:
        return await self._trajectories.admit(shard)

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        await _pass(self._way.put_s)
        await self._trajectories.put(ticket, pieces)

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        await self._trajectories.abandon(ticket, reason)


async def _pass(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)
