"""The RLinf channel of trajectories one way and of weights the other, and the sides that talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.rlinf.channel_process import ChannelProcess
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.wire import unpack
from rlinf_async.loops.trajectory_broker import TrainedBatch, TrajectoryBroker
from rlinf_async.loops.weight_broker import WeightBroker


class TrajectoryChannelWorker(ChannelProcess):
    """The process that holds the gate, the buffer and the books, and references to the newest weights."""

    def __init__(self, settings: Settings, version: int, ledger: Ledger) -> None:
        super().__init__()
        self._deterministic = settings.asynchrony.deterministic
        self._broker = TrajectoryBroker(
            settings.plan,
            max_staleness=settings.asynchrony.max_staleness,
            free=settings.asynchrony.train.balance == "free",
            until=settings.batches,
            version=version,
            ledger=ledger,
            deadline_s=settings.asynchrony.deadline_s,
        )
        self._weights = WeightBroker(
            ranks=settings.plan.inference_ranks,
            on_published=self._broker.publish,
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

    async def pop_trained(self, batch: int) -> TrainedBatch:
        return self._broker.pop_trained(batch)

    async def offer_weights(self, version: int, payload: Any) -> None:
        """`payload` holds a reference, so that the weights themselves do not come here."""
        if self._deterministic and self._weights.version is not None:
            # No sooner than the rollouts that need the version before have ended.
            await self._broker.collected(version)
        self._weights.offer(version, payload)

    async def next_weights(self, rank: int) -> tuple[int, Any] | None:
        return await self._weights.next(rank)

    async def weights_applied(self, rank: int, version: int) -> None:
        self._weights.applied(rank, version)

    async def weights_published(self, version: int) -> float:
        return await self._weights.published(version)

    async def close_weights(self) -> None:
        self._weights.close()

    def facts(self) -> dict[str, Any]:
        ledger = self._broker.ledger
        return {
            "version": self._broker.gate.version,
            "trajectories": str(ledger),
            "refused": dict(ledger.refused),
        }


class TrajectoryClient:
    """The env side of a trajectory channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def admit(self, shard: int) -> Ticket | None:
        return await self._channel.admit.remote(shard)

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        await self._channel.put_rollout.remote(ticket, pieces)


class PieceClient:
    """The learner side of a trajectory channel, for one rank.

    When the last pieces of a batch have been handed over, those of the next are fetched ahead, while the
    learner trains: opening them takes as long as a small micro-batch.
    """

    def __init__(self, channel: Any, *, rank: int, until: int) -> None:
        """`until` is the number of global batches of the run."""
        self._channel = channel
        self._rank = rank
        self._until = until
        self._ahead: dict[int, asyncio.Task[tuple[list[Piece], bool]]] = {}

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        fetched = self._ahead.pop(batch, None)
        pieces, last = await (fetched or self._fetch(batch, whole=whole))
        if last and batch + 1 < self._until:
            self._ahead[batch + 1] = asyncio.create_task(self._fetch(batch + 1, whole=whole))
        return pieces, last

    async def _fetch(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        pieces, last = await self._channel.take_pieces.remote(self._rank, batch, whole)
        data = await asyncio.gather(*(piece.payload[0] for piece in pieces))
        return [replace(piece, payload=unpack(held)) for piece, held in zip(pieces, data, strict=True)], last
