"""Fetches the first pieces of a batch while the batch before is trained."""

from __future__ import annotations

import asyncio

from rlinf_async.core.types import Piece
from rlinf_async.loops.ports import PiecePort, TakenPieces


class PrefetchedPieces:
    """The pieces of another port; fills `PiecePort`.

    When the last pieces of a batch have been handed over, the first pieces of the next batch are fetched
    while the learner trains: opening them takes as long as a small micro-batch.
    """

    def __init__(self, pieces: PiecePort, *, until: int, together: int) -> None:
        """`until` is the number of global batches of the run; a batch begins with `together` pieces."""
        self._pieces, self._until, self._together = pieces, until, together
        self._ahead: dict[int, asyncio.Task[TakenPieces]] = {}

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        fetched = self._ahead.pop(batch, None)
        pieces, last = await (fetched or self._pieces.take(batch, whole=whole))
        if last and batch + 1 < self._until:
            # An error of it is raised to whoever takes that batch.
            self._ahead[batch + 1] = asyncio.create_task(self._first(batch + 1, whole=whole))
        return pieces, last

    async def _first(self, batch: int, *, whole: bool) -> TakenPieces:
        pieces: list[Piece] = []
        last = False
        while not last and len(pieces) < self._together:
            more, last = await self._pieces.take(batch, whole=whole)
            pieces += more
        return pieces, last
