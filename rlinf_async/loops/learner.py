"""The learner loop of one rank for one global batch, and the prefetching of its pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rlinf_async.core.types import Piece
from rlinf_async.loops.foreign import contained, harmless
from rlinf_async.observe.spans import UNRECORDED, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import Learner, PiecePort, TakenPieces

WAITING_METRIC = "async/waiting_seconds"
"""The metric of `learn_batch` for the seconds that it waited for trajectories."""


async def in_place(work: Callable[..., Any], *arguments: object) -> Any:
    """Do `work` now, in this thread. Exceptions such as `SystemExit` become errors; see `loops.foreign`."""
    return contained(partial(work, *arguments), harmless)


async def learn_batch(
    *,
    batch: int,
    pieces: PiecePort,
    learner: Learner,
    streaming: bool,
    compute: Callable[..., Awaitable[Any]] = in_place,
    spans: SpanLog = UNRECORDED,
) -> dict[str, float]:
    """Train global batch `batch` and return its metrics.

    With `streaming` the learner gets pieces as they arrive; without it, all pieces at once. `compute` runs
    the learner's work; if it uses another thread, the next pieces are fetched meanwhile.

    Records the spans `fetch` (a wait for trajectories, perhaps during training on earlier ones), `accept`
    (with the facts of the pieces) and `finish`. The metric `WAITING_METRIC` has the seconds without anything
    to train on.
    """
    now, waiting_s = asyncio.get_running_loop().time, 0.0
    # Before `learner.begin`, which takes some time: the first pieces are fetched meanwhile.
    taking = asyncio.create_task(_take(pieces, batch, streaming, spans))
    try:
        await compute(learner.begin, batch)
        last = False
        while not last:
            began = now()
            arrived_pieces, last = await taking
            waiting_s += now() - began
            # Before `accept`, so that the next pieces are fetched during training on these.
            if not last:
                taking = asyncio.create_task(_take(pieces, batch, streaming, spans))
            with spans.span("accept", batch=batch, pieces=[_facts(piece) for piece in arrived_pieces]):
                # Pieces are handed over once: later calls continue with the pieces that the learner holds.
                while await compute(learner.accept, arrived_pieces):
                    arrived_pieces = ()
        with spans.span("finish", batch=batch):
            metrics: dict[str, float] = await compute(learner.finish)
        return {**metrics, WAITING_METRIC: waiting_s}
    finally:
        # Cancelling loses no piece: either the last take is done, or an error ends the run.
        taking.cancel()


async def _take(
    pieces: PiecePort, batch: int, streaming: bool, spans: SpanLog
) -> tuple[Sequence[Piece], bool]:
    with spans.span("fetch", batch=batch):
        return await pieces.take(batch, whole=not streaming)


def _facts(piece: Piece) -> list[int]:
    """Return place, epoch, part, size (trajectories) and staleness of a piece, and the number of versions
    between its oldest and newest action.
    """
    ticket, staleness = piece.ticket, piece.ticket.batch - piece.oldest
    return [ticket.place, ticket.epoch, piece.part, piece.size, staleness, piece.newest - piece.oldest]


class PrefetchedPieces:
    """A `PiecePort` that prefetches from another port.

    When the last pieces of a batch have been handed over, the first pieces of the next batch are fetched
    while the learner trains: opening them takes as long as a small micro-batch.
    """

    def __init__(self, pieces: PiecePort, *, until: int, together: int) -> None:
        """`until` is the number of global batches of the run; at least `together` pieces are prefetched."""
        self._pieces, self._until, self._together = pieces, until, together
        self._ahead: dict[int, asyncio.Task[TakenPieces]] = {}

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        first_pieces = self._ahead.pop(batch, None)
        pieces, last = await (first_pieces or self._pieces.take(batch, whole=whole))
        if last and batch + 1 < self._until:
            # An error of this task is raised by the `take` of that batch.
            self._ahead[batch + 1] = asyncio.create_task(self._first(batch + 1, whole=whole))
        return pieces, last

    async def _first(self, batch: int, *, whole: bool) -> TakenPieces:
        pieces: list[Piece] = []
        last = False
        while not last and len(pieces) < self._together:
            more, last = await self._pieces.take(batch, whole=whole)
            pieces += more
        return pieces, last
