"""The data of pieces: from the env worker that made it into the memory of the learner rank that trains it.

On one machine the learner rank maps what the env worker has written, which then is its own; from another
machine it is sent. What has been handed over is there when its maker has died, and passes nobody else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.ray_runtime.connection import Address, Answers, Callers
from rlinf_async.ray_runtime.listening import Listening
from rlinf_async.ray_runtime.shown_memory import Reader, ShownMemory
from rlinf_async.ray_runtime.wire import opened, read_sealed, seal, sealed

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
        for earlier in [held for held in self._data if held < batch]:
            del self._data[earlier]

    def filled(self, piece: Piece) -> Piece:
        """The piece with its data."""
        return replace(piece, payload=self._data[piece.ticket.batch][piece.ticket, piece.part])

    async def _answer(
        self, ticket: Ticket, part: int, payload: bytes | list[Any] | None = None
    ) -> bytes | None:
        """Hold a payload that is given; else show what is held."""
        held = self._data[ticket.batch]
        if payload is None:
            return seal(held[ticket, part])
        data = await read_sealed(payload, self._reader)
        if isinstance(data, PeerError):
            raise data
        held[ticket, part] = data
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
        return opened(await self._ask(piece))

    async def _ask(self, piece: Piece, *payload: object) -> Any:
        address = self._addresses[piece.rank]
        return await self._callers.ask(address, piece.ticket, piece.part, *payload, timeout_s=None)
