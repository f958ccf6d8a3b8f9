"""The process that paces a run, the sides that talk to it, and the data of rollouts, which goes past it.

The data of a piece goes from the env worker that made it into the memory of the learner rank that trains it.
On one machine the learner rank maps what the env worker has written, which then is its own; from another
machine it is sent. What has been handed over is there when its maker has died, and passes nobody else: the
coordinator sees counts alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.trajectory_broker import TrainedBatch
from rlinf_async.observe.failures import in_words
from rlinf_async.ray_runtime.checkpoints.saved_buffer import Resumed, resume_buffer, save_buffer
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.publication.weight_file import Place
from rlinf_async.wire.connection import Address, Answers, Caller, Callers, this_node
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.payloads import Reader, ShownMemory, read_sealed, seal, sealed, unseal


class Coordinator(RunProcess):
    """The process that holds the gate, the buffer and the ledger, and says where the newest weights are."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        self._settings = settings
        self._broker = settings.trajectory_broker(version=version)
        self._weights = settings.weight_broker(self._broker.publish)
        # Errors of the broker stay as they are: as a PeerError one would pass for the echo of another.
        self._answers = Answers(Listening.PACE, self._answer_call, as_raised=Exception)
        self._addresses: Sequence[Address] = ()
        self._learners = LearnerRanks(())
        self._mirrors: dict[str, tuple[int, Address]] = {}
        """The inference rank of each node whose mirror others of the node ask, and its address."""

    async def introduce(self, learners: Sequence[Address]) -> None:
        """Note where learner ranks, in their order, take the data of pieces; before anything is put."""
        self._addresses, self._learners = learners, LearnerRanks(learners)

    async def address(self, node: str) -> Address:
        """The address at which a process of `node` calls past Ray; see `_answer_call`."""
        return self._answers.listener.address(node)

    async def _answer_call(self, name: str, *arguments: Any) -> Any:
        match name, arguments:
            case "admit", (shard, generation):
                return await self._broker.admit(shard, generation)
            case "put", (ticket, pieces):
                return await self._broker.put(ticket, pieces)
            case "abandon", (ticket, reason):
                return await self._broker.abandon(ticket, reason)
            case "take", (rank, batch, whole):
                return await self._broker.take(rank, batch, whole=whole)
            case "learners", ():
                return self._addresses
        raise KeyError(name)

    async def shards_lost(self, shards: Sequence[int], generation: int) -> int:
        """Give up the rollouts of `shards`, whose env worker has died; how many there were.

        Calls of its successor bear `generation`.
        """
        return await self._broker.shards_lost(frozenset(shards), "env worker died", generation)

    async def rank_lost(self, rank: int, generation: int) -> None:
        """Note that inference rank `rank` has died, and that calls of its successor bear `generation`."""
        self._mirrors = {node: mirror for node, mirror in self._mirrors.items() if mirror[0] != rank}
        self._weights.rank_lost(rank, generation)

    async def close_gate(self) -> None:
        self._broker.close()

    async def read_ledger(self) -> Ledger:
        return self._broker.ledger

    async def save_buffer(self, folder: str) -> str | None:
        """Write the ledger and what has not been trained into a checkpoint; what was wrong, if anything."""
        broker = self._broker
        try:
            await save_buffer(
                Path(folder), broker.gate.version, broker.buffer, self._settings, self._learners.show
            )
        except OSError as error:
            return in_words(error)
        return None

    async def resume_buffer(self, folder: str) -> Resumed:
        """Go on with ledger and buffer of a checkpoint, before any rollout starts; what came of it."""
        gate, buffer = self._broker.gate, self._broker.buffer
        # In a list, so that data can be let go of below: the buffer keeps a piece, a learner rank its data.
        result = resume_buffer(Path(folder), gate.version, gate, buffer, self._settings, lambda data: [data])
        for piece in buffer.untrained():
            (data,) = piece.payload
            await self._learners.give(replace(piece, payload=data))
            piece.payload.clear()
        return result

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
        offer = await self._weights.next(rank, generation)
        if offer is None:
            return None
        # The first rank of a node mirrors for all of its ranks, as long as it lives.
        return (*offer, self._mirrors.setdefault(node, (rank, address))[1])

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


# -- the sides that talk to it --


class TrajectoryClient:
    """The env side of the coordinator, for all shards of one worker; fills `loops.ports.TrajectoryPort`."""

    def __init__(self, coordinator: Handle, *, generation: int = 0) -> None:
        """`generation` is the life of this process; see `core.restarts`."""
        self._caller, self._generation = _caller(coordinator), generation
        self._learners: LearnerRanks | None = None

    async def admit(self, shard: int) -> Ticket | None:
        ticket: Ticket | None = await self._caller.ask("admit", shard, self._generation)
        return ticket

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand over pieces, whose payloads are the data itself, to those who train them."""
        if self._learners is None:
            self._learners = LearnerRanks(await self._caller.ask("learners"))
        # First the data: what the buffer has is there, whatever becomes of this process.
        await asyncio.gather(*map(self._learners.give, pieces))
        await self._caller.ask("put", ticket, [replace(piece, payload=None) for piece in pieces])

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        await self._caller.ask("abandon", ticket, reason)


class PieceClient:
    """The learner side of the coordinator, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, coordinator: Handle, data: HeldPieces, *, rank: int) -> None:
        self._caller, self._data, self._rank = _caller(coordinator), data, rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        # The batches before this one were handed over whole: the learner holds what it trains of them.
        self._data.let_go_before(batch)
        pieces, last = await self._caller.ask("take", self._rank, batch, whole)
        return [self._data.with_data(piece) for piece in pieces], last


# -- the data of pieces --


Name = tuple[Ticket, int]
"""A rollout, and the number of a part of it."""


class HeldPieces:
    """The side of a learner rank: the data of pieces, until a later batch is taken."""

    def __init__(self) -> None:
        self._answers = Answers(Listening.ROLLOUTS, self._answer)
        # However long it takes: another machine may send many at a time.
        self._reader = Reader(timeout_s=None)
        self._data: dict[int, dict[Name, Any]] = defaultdict(dict)
        """By batch. Some are of rollouts that were refused or given up after that."""

    def address(self) -> Address:
        """Where pieces are handed over."""
        return self._answers.listener.address_for_all()

    def let_go_before(self, batch: int) -> None:
        """Forget the data of batches before `batch`."""
        for earlier in [number for number in self._data if number < batch]:
            del self._data[earlier]

    def with_data(self, piece: Piece) -> Piece:
        """The piece with its data."""
        return replace(piece, payload=self._data[piece.ticket.batch][piece.ticket, piece.part])

    async def _answer(
        self, ticket: Ticket, part: int, payload: bytes | list[Any] | None = None
    ) -> bytes | None:
        """Hold a payload that is given; else show what is held."""
        pieces = self._data[ticket.batch]
        if payload is None:
            return seal(pieces[ticket, part])
        data = await read_sealed(payload, self._reader)
        # Raised, it is the answer: nothing is held, and the maker learns that its piece has not arrived.
        if isinstance(data, PeerError):
            raise data
        pieces[ticket, part] = data
        return None


class LearnerRanks:
    """The side of those who make pieces, and of who wants to see them."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        """`addresses` are those of `HeldPieces`, in the order of the ranks."""
        self._addresses = addresses
        self._callers = Callers("a learner rank")
        self._memory = ShownMemory(Listening.LARGE_ROLLOUTS, reused=False)

    async def give(self, piece: Piece) -> None:
        """Hand over the payload of `piece` to the rank that trains it.

        Raises:
            PeerError: it has died, or its node is lost.
        """
        with sealed(piece.payload, self._memory) as payload:
            await self._ask(piece, payload)

    async def show(self, piece: Piece) -> Any:
        """The payload of a piece that was handed over."""
        return unseal(await self._ask(piece))

    async def _ask(self, piece: Piece, *payload: object) -> Any:
        address = self._addresses[piece.rank]
        return await self._callers.ask(address, piece.ticket, piece.part, *payload, timeout_s=None)


def _caller(coordinator: Handle) -> Caller:
    return Caller("the coordinator", partial(coordinator.address.remote, this_node()))
