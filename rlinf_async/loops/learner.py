"""The learner loop: one global batch on one rank."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rlinf_async.loops.ports import Learner, PiecePort


async def in_place(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do `work` now, in this thread."""
    return work(*arguments)


async def learn_batch(
    *,
    batch: int,
    pieces: PiecePort,
    learner: Learner,
    streaming: bool,
    compute: Callable[..., Awaitable[Any]] = in_place,
) -> dict[str, float]:
    """Train global batch `batch` and return its metrics.

    With `streaming` the learner is handed what has arrived as it arrives; without, everything at once.
    `compute` does the learner's work; if that is elsewhere than in this thread, the next pieces are
    fetched meanwhile.
    """
    taking = asyncio.create_task(_take(pieces, batch, streaming))
    try:
        await compute(learner.begin, batch)
        last = False
        while not last:
            arrived, last = await taking
            if not last:
                taking = asyncio.create_task(_take(pieces, batch, streaming))
            await compute(learner.accept, arrived)
        metrics: dict[str, float] = await compute(learner.finish)
        return metrics
    finally:
        taking.cancel()


async def _take(pieces: PiecePort, batch: int, streaming: bool) -> tuple[Any, bool]:
    return await pieces.take(batch, whole=not streaming)
