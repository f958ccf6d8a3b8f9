"""The process that paces a run, its clients, and the way of rollout data, which does not pass the
coordinator.

The data of a piece goes from the env worker that made it into the memory of the learner rank that trains it.
On one machine the learner rank maps the memory that the env worker has written, and owns it from then on; to
another machine the data is sent. Data that has been handed over survives the death of its env worker. No
other process sees the data: the coordinator sees counts alone.
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
from rlinf_async.ray_runtime.publication.weight_file import WeightPlace
from rlinf_async.wire.connection import Address, Answers, Caller, Callers, this_node
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.payloads import Reader, ShownMemory, read_sealed, seal, sealed, unseal


class Coordinator(RunProcess):
    """The process that holds the gate, the buffer, the ledger and the places of the newest weights."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        self._settings = settings
        self._broker = settings.trajectory_broker(version=version)
        self._weights = settings.weight_broker(self._broker.publish)
        # Errors of the broker reach callers unchanged: the driver takes a PeerError for the echo of another
        # failure.
        self._answers = Answers(Listening.PACE, self._answer_call, as_raised=Exception)
        self._addresses: Sequence[Address] = ()
        self._learners = LearnerRanks(())
        self._mirrors: dict[str, tuple[int, Address]] = {}
        """By node: the inference rank that mirrors the weights for it, and the address of its mirror."""

    async def introduce(self, learners: Sequence[Address]) -> None:
        """Take the addresses of the learner ranks, in their order; called before any piece is put."""
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
        """Give up the rollouts of `shards` after the death of their env worker, and return their number.

        Calls of the new env worker bear `generation`.
        """
        return await self._broker.shards_lost(frozenset(shards), "env worker died", generation)

    async def rank_lost(self, rank: int, generation: int) -> None:
        """Note that inference rank `rank` has died, and that calls of the new rank bear `generation`."""
        self._mirrors = {node: mirror for node, mirror in self._mirrors.items() if mirror[0] != rank}
        self._weights.rank_lost(rank, generation)

    async def pause(self) -> int:
        """Begin no further batch, and return the first that has not begun; see `TrajectoryBroker.pause`."""
        return self._broker.pause()

    async def go_on(self, settings: RunSettings) -> None:
        """Go on after `pause`, with the shards of `settings`."""
        self._settings = settings
        self._broker.go_on(settings.plan)

    async def close_gate(self) -> None:
        self._broker.close()

    async def read_ledger(self) -> Ledger:
        return self._broker.ledger

    async def save_buffer(self, folder: str) -> str | None:
        """Write the ledger and the untrained pieces into a checkpoint; return the error, if any."""
        broker = self._broker
        try:
            await save_buffer(
                Path(folder), broker.gate.version, broker.buffer, self._settings, self._learners.show
            )
        except OSError as error:
            return in_words(error)
        return None

    async def resume_buffer(self, folder: str) -> Resumed:
        """Restore ledger and buffer from a checkpoint, before any rollout starts; return the outcome."""
        gate, buffer = self._broker.gate, self._broker.buffer
        # In a list, so that the data can be dropped below: the buffer keeps the piece, a learner rank the
        # data.
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

    async def offer_weights(self, version: int, places: Sequence[WeightPlace]) -> None:
        """Offer the weights of `version`, at `places` in the memory of the learner, to inference ranks."""
        # Before the first version there are no rollouts to wait for.
        if self._weights.version is not None:
            await self._settings.may_offer(version, self._broker)
        self._weights.offer(version, places)

    async def next_weights(
        self, rank: int, generation: int, node: str, address: Address
    ) -> tuple[int, Sequence[WeightPlace], Address] | None:
        """Wait for a newer version; return its number, its places, and the address of the mirror on `node`.

        `address` is the address of the rank's own mirror. None when no more versions follow.
        """
        offer = await self._weights.next(rank, generation)
        if offer is None:
            return None
        # The first rank of a node to ask mirrors the weights for all ranks of the node, as long as it lives.
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


# -- the clients of the coordinator --


class TrajectoryClient:
    """The env side of the coordinator, for all shards of one worker; fills `loops.ports.TrajectoryPort`."""

    def __init__(self, coordinator: Handle, *, generation: int = 0) -> None:
        """`generation` is the number of deaths of this env worker before this process; see
        `core.restarts`.
        """
        self._caller, self._generation = _caller(coordinator), generation
        self._learners: LearnerRanks | None = None

    async def admit(self, shard: int) -> Ticket | None:
        ticket: Ticket | None = await self._caller.ask("admit", shard, self._generation)
        return ticket

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand the data of `pieces` to the learner ranks that train them, then the pieces to the buffer."""
        if self._learners is None:
            self._learners = LearnerRanks(await self._caller.ask("learners"))
        # First the data: it must outlive this process before the buffer counts its piece.
        await asyncio.gather(*map(self._learners.give, pieces))
        await self._caller.ask("put", ticket, [replace(piece, payload=None) for piece in pieces])

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        await self._caller.ask("abandon", ticket, reason)


class PieceClient:
    """The learner side of the coordinator, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, coordinator: Handle, data: HeldPieces, *, rank: int) -> None:
        self._caller, self._data, self._rank = _caller(coordinator), data, rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        # The learner holds the data of earlier batches itself: they were handed over whole.
        self._data.let_go_before(batch)
        pieces, last = await self._caller.ask("take", self._rank, batch, whole)
        return [self._data.with_data(piece) for piece in pieces], last


# -- the data of pieces --


PartKey = tuple[Ticket, int]
"""The ticket of a rollout, and the number of one of its parts."""


class HeldPieces:
    """The data of pieces in the memory of a learner rank, until a later batch is taken."""

    def __init__(self) -> None:
        self._answers = Answers(Listening.ROLLOUTS, self._answer)
        # Without a timeout: another machine may send many pieces at a time.
        self._reader = Reader(timeout_s=None)
        self._data: dict[int, dict[PartKey, Any]] = defaultdict(dict)
        """By batch; some data belongs to rollouts that were refused or given up after it had come."""

    def address(self) -> Address:
        """The address for env workers that hand over pieces."""
        return self._answers.listener.address_for_all()

    def let_go_before(self, batch: int) -> None:
        """Forget the data of batches before `batch`."""
        for earlier in [number for number in self._data if number < batch]:
            del self._data[earlier]

    def with_data(self, piece: Piece) -> Piece:
        """Return `piece` with its data as payload."""
        return replace(piece, payload=self._data[piece.ticket.batch][piece.ticket, piece.part])

    async def _answer(
        self, ticket: Ticket, part: int, payload: bytes | list[Any] | None = None
    ) -> bytes | None:
        """Hold `payload` as the data of a part; without a payload, return the data that is held."""
        pieces = self._data[ticket.batch]
        if payload is None:
            return seal(pieces[ticket, part])
        data = await read_sealed(payload, self._reader)
        # Raised here, the error reaches the sender: its piece has not arrived, and nothing is held.
        if isinstance(data, PeerError):
            raise data
        pieces[ticket, part] = data
        return None


class LearnerRanks:
    """The learner ranks as other processes see them: they are given the data of pieces, and show it."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        """`addresses` are those of the ranks' `HeldPieces`, in the order of the ranks."""
        self._addresses = addresses
        self._callers = Callers("a learner rank")
        self._memory = ShownMemory(Listening.LARGE_ROLLOUTS, reused=False)

    async def give(self, piece: Piece) -> None:
        """Hand over the payload of `piece` to the rank that trains it.

        Raises:
            PeerError: the rank has died, or its node is lost.
        """
        with sealed(piece.payload, self._memory) as payload:
            await self._ask(piece, payload)

    async def show(self, piece: Piece) -> Any:
        """Return the data of a piece that was handed over."""
        return unseal(await self._ask(piece))

    async def _ask(self, piece: Piece, *payload: object) -> Any:
        address = self._addresses[piece.rank]
        return await self._callers.ask(address, piece.ticket, piece.part, *payload, timeout_s=None)


def _caller(coordinator: Handle) -> Caller:
    return Caller("the coordinator", partial(coordinator.address.remote, this_node()))
