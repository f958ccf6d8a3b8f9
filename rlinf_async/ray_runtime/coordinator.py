"""The process that paces a run, and the sides that talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.trajectory_broker import TrainedBatch
from rlinf_async.observe.failures import in_words
from rlinf_async.ray_runtime.connection import Address, Answers, Caller, this_node
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.held_pieces import HeldPieces, LearnerRanks
from rlinf_async.ray_runtime.inspection import Inspectable
from rlinf_async.ray_runtime.listening import Listening
from rlinf_async.ray_runtime.saved_buffer import Resumed, resume_buffer, save_buffer
from rlinf_async.ray_runtime.weight_file import Place


class Coordinator(Inspectable):
    """The process that holds the gate, the buffer and the ledger, and says where the newest weights are."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        self._settings = settings
        self._broker = settings.trajectory_broker(version=version)
        self._weights = settings.weight_broker(self._broker.publish)
        self._answers = Answers(Listening.PACE, self._called, as_raised=Exception)
        self._addresses: Sequence[Address] = ()
        self._learners = LearnerRanks(())
        self._mirrors: dict[str, tuple[int, Address]] = {}
        """The inference rank of each node whose mirror others of the node ask, and its address."""

    async def introduce(self, learners: Sequence[Address]) -> None:
        """Note where learner ranks, in their order, take the data of pieces; before anything is put."""
        self._addresses, self._learners = learners, LearnerRanks(learners)

    async def address(self, node: str) -> Address:
        """The address at which a process of `node` calls past Ray; see `_called`."""
        return self._answers.listener.address(node)

    async def _called(self, name: str, *arguments: Any) -> Any:
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
        resumed = resume_buffer(Path(folder), gate.version, gate, buffer, self._settings, lambda data: [data])
        for piece in buffer.untrained():
            (data,) = piece.payload
            await self._learners.give(replace(piece, payload=data))
            piece.payload.clear()
        return resumed

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


class _Side:
    """A process that calls the coordinator directly."""

    def __init__(self, coordinator: Handle) -> None:
        self._caller = Caller("the coordinator", partial(coordinator.address.remote, this_node()))


class TrajectoryClient(_Side):
    """The env side of the coordinator, for all shards of one worker; fills `loops.ports.TrajectoryPort`."""

    def __init__(self, coordinator: Handle, *, generation: int = 0) -> None:
        """`generation` is the life of this process; see `core.generations`."""
        super().__init__(coordinator)
        self._generation = generation
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


class PieceClient(_Side):
    """The learner side of the coordinator, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, coordinator: Handle, held: HeldPieces, *, rank: int) -> None:
        super().__init__(coordinator)
        self._held, self._rank = held, rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        self._held.let_go_before(batch)
        pieces, last = await self._caller.ask("take", self._rank, batch, whole)
        return [self._held.filled(piece) for piece in pieces], last
