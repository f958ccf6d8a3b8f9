"""The clients of the coordinator, and the way of rollout data, which does not pass through the coordinator.

The data of a piece goes from the env worker that made it into the memory of the learner rank that trains it.
On one machine the learner rank maps the memory that the env worker has written, and owns it from then on; to
another machine the data is sent. Data that has been handed over survives the death of its env worker. No
other process sees the data: the coordinator sees counts only, except while it saves or resumes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.ray_runtime.handles import Handle, peer_of
from rlinf_async.wire.connection import Address, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import Reuse
from rlinf_async.wire.payloads import map_ahead, read_sealed, seal, sealed, unseal
from rlinf_async.wire.peers import Peers, replies
from rlinf_async.wire.shown_memory import Reader, ShownMemory


class TrajectoryClient:
    """The env side of the coordinator, for all shards of one worker; fills `loops.ports.TrajectoryPort`."""

    def __init__(self, coordinator: Handle, *, generation: int = 0) -> None:
        """`generation` is the number of deaths of this env worker before this process; see
        `core.restarts`.
        """
        self._coordinator, self._generation = peer_of(coordinator, "the coordinator"), generation
        self._learners: LearnerRanks | None = None

    async def admit(self, shard: int) -> Ticket | None:
        ticket: Ticket | None = await self._coordinator.call("admit", shard, self._generation)
        return ticket

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand the data of `pieces` to the learner ranks that train them, then the pieces to the buffer."""
        if self._learners is None:
            self._learners = LearnerRanks(await self._coordinator.call("learners"))
        # First the data: it must outlive this process before the buffer counts its piece.
        await asyncio.gather(*map(self._learners.give, pieces))
        await self._coordinator.call("put", ticket, [replace(piece, payload=None) for piece in pieces])

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        await self._coordinator.call("abandon", ticket, reason)


class PieceClient:
    """The learner side of the coordinator, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, coordinator: Handle, data: HeldPieces, *, rank: int) -> None:
        self._coordinator, self._data, self._rank = peer_of(coordinator, "the coordinator"), data, rank

    async def take(self, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        # The learner holds the data of earlier batches itself: they were handed over whole.
        self._data.let_go_before(batch)
        pieces, last = await self._coordinator.call("take", self._rank, batch, whole)
        return [self._data.with_data(piece) for piece in pieces], last


# -- the data of pieces --


PartKey = tuple[Ticket, int]
"""The ticket of a rollout, and the number of one of its parts."""


class HeldPieces:
    """The data of pieces in the memory of a learner rank, until a later batch is taken."""

    def __init__(self) -> None:
        self._listener = Listener(Listening.ROLLOUTS, replies(self._answer))
        # Without a timeout: another machine may send many pieces at a time.
        self._reader = Reader(timeout_s=None)
        self._data: dict[int, dict[PartKey, Any]] = defaultdict(dict)
        """By batch; some data belongs to rollouts that were refused or given up after it had come."""

    def address(self) -> Address:
        """The address for env workers that hand over pieces."""
        return self._listener.address_for_all()

    def let_go_before(self, batch: int) -> None:
        """Forget the data of batches before `batch`."""
        for earlier in [number for number in self._data if number < batch]:
            del self._data[earlier]

    def with_data(self, piece: Piece) -> Piece:
        """Return `piece` with its data as payload."""
        data = self._data[piece.ticket.batch][piece.ticket, piece.part]
        # Not when the data comes: then the pages of later batches would count as memory of this process.
        map_ahead(data)
        return replace(piece, payload=data)

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
    """The learner ranks as other processes see them: they receive the data of pieces, and show it."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        """`addresses` are the addresses of the ranks' `HeldPieces`, in the order of the ranks."""
        self._addresses = addresses
        self._ranks = Peers("a learner rank")
        self._memory = ShownMemory(Listening.LARGE_ROLLOUTS, Reuse.UNMAPPED)

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
        return await self._ranks.call(address, piece.ticket, piece.part, *payload, timeout_s=None)
