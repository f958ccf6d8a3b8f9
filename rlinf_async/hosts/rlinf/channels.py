"""RLinf channels with a broker inside: requests to inference, and trajectories to the learner.

Both are channel workers of RLinf, reached through Ray's own calls: those can be awaited with a deadline,
fail loudly when a process dies, and have no per-pair queue behind which others wait. Payloads travel as
references into Ray's object store and never pass through the channel's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import ray
from rlinf.scheduler.channel.channel_worker import ChannelWorker

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.wire import pack, unpack
from rlinf_async.loops.request_broker import Pending, RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker


class RequestChannelWorker(ChannelWorker):
    """The process in which env shards meet inference ranks."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(maxsize=0)
        rollout, deadline_s = settings.asynchrony.rollout, settings.asynchrony.deadline_s
        if rollout.enabled:
            self._broker = RequestBroker.dynamic(
                ranks=settings.plan.inference_ranks,
                max_size=settings.max_batch_size,
                max_wait=rollout.max_wait,
                deadline_s=deadline_s,
            )
        else:
            in_step = settings.asynchrony.deterministic
            self._broker = RequestBroker.barrier(settings.plan, deadline_s=deadline_s, in_step=in_step)

    async def act(self, request: ActionRequest) -> Any:
        return await self._broker.act(request)

    async def take_requests(self, rank: int) -> list[Pending] | None:
        return await self._broker.take(rank)

    async def answer(self, numbers: Sequence[int], answers: Sequence[Any]) -> None:
        self._broker.reply(numbers, answers)

    async def fail_requests(self, numbers: Sequence[int], message: str) -> None:
        self._broker.fail(numbers, message)

    async def begin_rollout(self, shard: int) -> None:
        self._broker.begin(shard)

    async def end_rollout(self, shard: int) -> None:
        self._broker.end(shard)

    async def close_requests(self) -> None:
        self._broker.close()

    async def pop_batches(self) -> dict[str, Any]:
        """Spreads of batch sizes (samples) and waits (seconds) since the last call."""
        size, wait = self._broker.batch_size, self._broker.batch_wait
        self._broker.batch_size, self._broker.batch_wait = type(size)(), type(wait)()
        return {"size": size, "wait": wait}


class TrajectoryChannelWorker(ChannelWorker):
    """The process that holds the gate, the buffer and the books."""

    def __init__(self, settings: Settings, version: int, ledger: Ledger) -> None:
        super().__init__(maxsize=0)
        self._broker = TrajectoryBroker(
            settings.plan,
            max_staleness=settings.asynchrony.max_staleness,
            until=settings.batches,
            version=version,
            ledger=ledger,
            deadline_s=settings.asynchrony.deadline_s,
        )

    async def admit(self, shard: int) -> Ticket | None:
        return await self._broker.admit(shard)

    async def put_rollout(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        await self._broker.put(ticket, pieces)

    async def take_pieces(self, rank: int, batch: int, whole: bool) -> tuple[list[Piece], bool]:
        return await self._broker.take(rank, batch, whole=whole)

    async def collected(self, version: int) -> None:
        await self._broker.collected(version)

    async def publish(self, version: int) -> None:
        self._broker.publish(version)

    async def close_gate(self) -> None:
        self._broker.close()

    async def read_ledger(self) -> Ledger:
        return self._broker.ledger

    async def report(self) -> dict[str, Any]:
        """The ledger, and the spread of staleness since the last call."""
        spread = self._broker.staleness
        self._broker.staleness = type(spread)()
        return {"ledger": self._broker.ledger, "staleness": spread}


class RequestClient:
    """The env side of a request channel, for one worker."""

    def __init__(self, channel: Any, *, counts_rollouts: bool) -> None:
        self._channel = channel
        self._counts_rollouts = counts_rollouts

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        # Only the barrier batcher of level 2 off counts who is in flight.
        if self._counts_rollouts:
            await self._channel.begin_rollout.remote(shard)
        try:
            yield
        finally:
            if self._counts_rollouts:
                await self._channel.end_rollout.remote(shard)

    async def act(self, request: ActionRequest) -> Any:
        sent = ActionRequest(
            shard=request.shard,
            size=request.size,
            mode=request.mode,
            payload=[ray.put(pack(request.payload))],
        )
        answer = await self._channel.act.remote(sent)
        return unpack(await answer[0])


class RequestServer:
    """The inference side of a request channel, for one rank."""

    def __init__(self, channel: Any, *, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    async def take(self) -> list[Pending] | None:
        return await self._channel.take_requests.remote(self._rank)

    @asynccontextmanager
    async def answering(self, batch: Sequence[Pending]) -> AsyncIterator[list[Any]]:
        numbers = [pending.number for pending in batch]
        answers: list[Any] = []
        succeeded = False
        try:
            yield answers
            await self._channel.answer.remote(numbers, [[ray.put(pack(answer))] for answer in answers])
            succeeded = True
        finally:
            if not succeeded:
                await self._channel.fail_requests.remote(numbers, f"inference rank {self._rank} failed")


class TrajectoryClient:
    """The env side of a trajectory channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def admit(self, shard: int) -> Ticket | None:
        return await self._channel.admit.remote(shard)

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        await self._channel.put_rollout.remote(ticket, pieces)


class PieceClient:
    """The learner side of a trajectory channel, for one rank."""

    def __init__(self, channel: Any, *, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        pieces, last = await self._channel.take_pieces.remote(self._rank, batch, whole)
        data = await fetch([piece.payload for piece in pieces])
        return [replace(piece, payload=held) for piece, held in zip(pieces, data, strict=True)], last


async def fetch(payloads: Sequence[Any]) -> list[Any]:
    """The data behind references that travelled in a record."""
    return [unpack(data) for data in await asyncio.gather(*(reference[0] for reference in payloads))]
