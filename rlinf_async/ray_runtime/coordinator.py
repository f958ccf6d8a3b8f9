"""The process that paces a run, and the sides that talk to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import ray

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.trajectory_broker import TrainedBatch
from rlinf_async.observe.failures import in_words
from rlinf_async.ray_runtime.connection import Address
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.inspection import Inspectable
from rlinf_async.ray_runtime.saved_buffer import Resumed, resume_buffer, save_buffer
from rlinf_async.ray_runtime.weight_file import Place
from rlinf_async.ray_runtime.wire import pack, unpack

NODE_LOST = "node lost"
"""The reason of the ledger for trajectories whose data was on a node that is lost."""


class Coordinator(Inspectable):
    """The process that holds the gate, the buffer and the ledger, and says where the newest weights are."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        self._settings = settings
        self._broker = settings.trajectory_broker(version=version)
        self._weights = settings.weight_broker(self._broker.publish)
        self._workers: dict[str, Handle] = {}
        """Ray's handles of the env workers, by the names of their clients."""
        self._mirrors: dict[str, tuple[int, Address]] = {}
        """The inference rank of each node whose mirror others of the node ask, and its address."""

    async def introduce(self, client: str, worker: Handle) -> None:
        """Note whose `give_rollout` gives what `client` hands over.

        Once, as a handle takes longer to be packed and unpacked than all else that is said of a rollout.
        """
        self._workers[client] = worker

    async def admit(self, shard: int, generation: int) -> Ticket | None:
        return await self._broker.admit(shard, generation)

    async def put_rollout(self, ticket: Ticket, pieces: Sequence[Piece], client: str, number: int) -> None:
        """Take the pieces of a rollout, whose payloads the worker of `client` gives under `number`.

        What a call returns belongs to the caller. So the data stays where it is made and does not come here,
        and is there for the learner when the worker has died.
        """
        # One object per piece, so that each learner rank fetches its own; the receipt is small and travels in
        # the reply.
        give = self._workers[client].give_rollout.options(num_returns=len(pieces) + 1)
        *data, receipt = give.remote(number)
        # Only now the data is known to be made: a worker that died before it is an error here, and its
        # rollout is given up.
        await receipt
        pieces_held = [replace(piece, payload=[one]) for piece, one in zip(pieces, data, strict=True)]
        await self._broker.put(ticket, pieces_held)

    async def abandon_rollout(self, ticket: Ticket, reason: str) -> None:
        await self._broker.abandon(ticket, reason)

    async def shards_lost(self, shards: Sequence[int], generation: int) -> int:
        """Give up the rollouts of `shards`, whose env worker has died; how many there were.

        Calls of its successor bear `generation`.
        """
        return await self._broker.shards_lost(frozenset(shards), "env worker died", generation)

    async def rank_lost(self, rank: int, generation: int) -> None:
        """Note that inference rank `rank` has died, and that calls of its successor bear `generation`."""
        self._mirrors = {node: mirror for node, mirror in self._mirrors.items() if mirror[0] != rank}
        self._weights.rank_lost(rank, generation)

    async def take_pieces(self, rank: int, batch: int, whole: bool) -> tuple[list[Piece], bool]:
        return await self._broker.take(rank, batch, whole=whole)

    async def pieces_lost(self, pieces: Sequence[Piece]) -> None:
        """Have those collected again whose data was on a node that is lost."""
        await self._broker.pieces_lost(pieces, NODE_LOST)

    async def close_gate(self) -> None:
        self._broker.close()

    async def read_ledger(self) -> Ledger:
        return self._broker.ledger

    async def save_buffer(self, folder: str) -> str | None:
        """Write the ledger and what has not been trained into a checkpoint; what was wrong, if anything."""
        broker = self._broker
        try:
            await save_buffer(Path(folder), broker.gate.version, broker.buffer, self._settings, _opened)
        except OSError as error:
            return in_words(error)
        return None

    async def resume_buffer(self, folder: str) -> Resumed:
        """Go on with ledger and buffer of a checkpoint, before any rollout starts; what came of it."""
        gate, buffer = self._broker.gate, self._broker.buffer
        return resume_buffer(Path(folder), gate.version, gate, buffer, self._settings, _held)

    async def pop_trained(self, batch: int) -> TrainedBatch:
        return self._broker.pop_trained(batch)

    async def collected(self, version: int) -> None:
        """Wait until no rollout needs the weights before `version` any more."""
        await self._broker.collected(version)

    async def offer_weights(self, version: int, places: Sequence[Place]) -> None:
        """The weights of `version` are at `places`, in the memory of the learner."""
        # The first version has no rollouts before it to wait for.
        if self._weights.version is not None:
            await self._settings.may_offer(version, self._broker)
        self._weights.offer(version, places)

    async def next_weights(
        self, rank: int, generation: int, node: str, address: Address
    ) -> tuple[int, Sequence[Place], Address] | None:
        """The newest version for `rank`, where it is, and the address of who mirrors it on `node`.

        `address` is that of the mirror that the rank has itself.
        """
        offered = await self._weights.next(rank, generation)
        if offered is None:
            return None
        # The first rank of a node mirrors for all of its ranks, as long as it lives.
        return (*offered, self._mirrors.setdefault(node, (rank, address))[1])

    async def weights_applied(self, rank: int, version: int, generation: int) -> None:
        self._weights.applied(rank, version, generation)

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


async def _opened(piece: Piece) -> Any:
    try:
        return await piece.payload[0]
    except ray.exceptions.ObjectLostError as error:
        raise PeerError(f"a piece of batch {piece.ticket.batch} is on a node that is lost") from error


def _held(data: object) -> list[Any]:
    return [ray.put(data)]


class TrajectoryClient:
    """The env side of the coordinator, for all shards of one worker."""

    def __init__(self, coordinator: Handle, *, generation: int = 0) -> None:
        """`generation` is the life of this process; see `core.generations`."""
        self._coordinator, self._name = coordinator, uuid.uuid4().hex
        self._generation = generation
        self._numbers = count()
        self._rollouts: dict[int, list[Any]] = {}

    async def introduce(self, worker: Handle) -> None:
        """To be called before anything is put.

        `worker` is Ray's handle of this process, whose `give_rollout` calls `give`.
        """
        await self._coordinator.introduce.remote(self._name, worker)

    async def admit(self, shard: int) -> Ticket | None:
        return await self._coordinator.admit.remote(shard, self._generation)

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand over pieces, whose payloads are the data itself."""
        number = next(self._numbers)
        self._rollouts[number] = [pack(piece.payload) for piece in pieces]
        empty = [replace(piece, payload=None) for piece in pieces]
        try:
            await self._coordinator.put_rollout.remote(ticket, empty, self._name, number)
        finally:
            # Ray has the data by now, or the call has failed: it is not needed here either way.
            del self._rollouts[number]

    def give(self, number: int) -> tuple[Any, ...]:
        """The payloads of a rollout that is being handed over, packed, and None."""
        return (*self._rollouts[number], None)

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        await self._coordinator.abandon_rollout.remote(ticket, reason)


class PieceClient:
    """The learner side of the coordinator, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, coordinator: Handle, *, rank: int) -> None:
        self._coordinator = coordinator
        self._rank = rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        found: list[Piece] = []
        while True:
            pieces, last = await self._coordinator.take_pieces.remote(self._rank, batch, whole)
            # Fetched from where it was made, past the coordinator.
            data = await asyncio.gather(*(_fetched(piece) for piece in pieces))
            lost: list[Piece] = []
            for piece, payload in zip(pieces, data, strict=True):
                if payload is None:
                    lost.append(replace(piece, payload=None))
                else:
                    found.append(replace(piece, payload=unpack(payload)))
            if not lost:
                return found, last
            await self._coordinator.pieces_lost.remote(lost)
            if found and not whole:
                return found, False


async def _fetched(piece: Piece) -> Any:
    """The data of a piece; None if it was on a node that is lost."""
    with suppress(ray.exceptions.ObjectLostError):
        return await piece.payload[0]
    return None
