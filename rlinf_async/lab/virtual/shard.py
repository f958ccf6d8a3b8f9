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
from rlinf_async.loops.run_settings import RunSettings
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


Left = tuple[int, ...]
"""Decisions that the episode of each environment has left after an output; 0 and below: it has ended."""


class VirtualShard:
    """Fills `loops.ports.ShardEnv`; answers are the version that acted.

    All environments are stepped until the last episode has ended.
    """

    def __init__(
        self,
        number: int,
        *,
        batch: SimulatorBatch,
        plan: ShardPlan,
        horizon: int,
        worker: Worker,
        busy: BusyMeter,
        skips_ended: bool,
    ) -> None:
        self.size, self.horizon = plan.envs_per_shard, horizon
        self._skips_ended, self._decisions = skips_ended, 0
        self._number, self._batch, self._worker = number, batch, worker
        self._busy = busy

    async def start(self) -> Left:
        self._decisions = 0
        with self._busy.busy(self._number):
            await self._worker.simulate(self._batch.reset())
        return self._left()

    async def step(self, answer: int) -> Left:
        self._decisions += 1
        with self._busy.busy(self._number):
            await self._worker.simulate(self._batch.step())
        return self._left()

    def _left(self) -> Left:
        return tuple(length - self._decisions for length in self._batch.lengths)

    def waiting(self, output: Left) -> int:
        return sum(left > 0 for left in output) if self._skips_ended else self.size

    def observation(self, output: Left) -> None:
        """Show nothing."""

    def take_on(self, place: int, rollout: int) -> None:
        self._batch.take_on(place * self.size, rollout)

    def stand_at(self, place: int, rollout: int) -> None:
        """Planned environments are those of their place."""

    async def finish(self) -> None:
        """The next initial states cost nothing before they are reset to."""

    async def restart(self) -> None:
        """Planned environments do not fail."""


class VirtualRecorder:
    """Keeps the versions that acted; fills `loops.ports.Recorder`. A piece is the lengths of its episodes."""

    def __init__(self, ticket: Ticket, settings: RunSettings) -> None:
        self._ticket, self._settings = ticket, settings
        self._versions: list[int] = []

    def append(self, output: Left, answer: int) -> None:
        self._versions.append(answer)

    async def complete(self, output: Left) -> None:
        """Nothing comes late."""

    def build(self, output: Left, answer: int | None) -> Sequence[Piece]:
        plan, horizon, played = self._settings.plan, self._settings.horizon, len(self._versions)
        lengths = [played + left for left in output]
        payloads = [tuple(lengths[start:stop]) for start, stop in plan.piece_ends]
        skipped = [
            (plan.piece_size * (horizon - played), self._skipped_decisions(payload)) for payload in payloads
        ]
        return pieces(
            self._ticket, payloads, plan=plan, versions=self._versions, horizon=horizon, skipped=skipped
        )

    def _skipped_decisions(self, lengths: Sequence[int]) -> int:
        horizon = self._settings.horizon
        return sum(max(0, horizon - length) for length in lengths) if self._settings.skips_ended else 0


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
