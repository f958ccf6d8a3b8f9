"""The learner loop: one global batch on one rank."""

from __future__ import annotations

from rlinf_async.loops.ports import Learner, PiecePort


async def learn_batch(
    *, batch: int, pieces: PiecePort, learner: Learner, streaming: bool
) -> dict[str, float]:
    """Train global batch `batch` and return its metrics.

    With `streaming` the learner is handed what has arrived as it arrives; without, everything at once.
    """
    learner.begin(batch)
    last = False
    while not last:
        arrived, last = await pieces.take(batch, whole=not streaming)
        learner.accept(arrived)
    return learner.finish()
