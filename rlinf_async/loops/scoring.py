"""Scoring of pieces by the first that is free: an idle inference rank, or the learner itself.

Theory of operation. Batch `b` is anchored at the policy of version `b`, with which its training begins. The
inference ranks get that version when the batch before has been trained, and the next version only after batch
`b`: while `b` is trained, they hold its anchor. So an inference rank without requests for actions can make
the pass without gradients that the learner would make over a piece.

A learner rank requests the scores of its pieces as they arrive, in that order, and does not wait. When it
continues with its next pieces, it takes pieces that have their scores. If there are none, it takes back the
pieces that inference would score last, and scores them by itself (`StreamingLearner`). The scores of a piece
are a future: cancelling it takes the piece back, unless the scores have arrived. So every piece is anchored
once, by inference or by the learner.

Samples without a gradient are in no request, as they are in no pass of the learner: the host chooses the rows
of a piece to be scored (`core.scores.ToScore`). The other rows get scores of 0, which are never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_async.core.scores import ToScore
from rlinf_async.core.tensors import Tree, concatenate, in_parts, map_tensors, size_of
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Piece
from rlinf_async.loops.run_settings import RunSettings

if TYPE_CHECKING:
    from rlinf_async.loops.ports import PiecePort, PolicyPort, TakenPieces

Inputs = Callable[[Any], ToScore]
"""Returns the samples to score of a piece's payload."""


class ScoredPieces:
    """A `PiecePort` that takes pieces from another port, and requests their scores from inference."""

    def __init__(
        self,
        pieces: PiecePort,
        policy: PolicyPort,
        settings: RunSettings,
        *,
        rank: int,
        published: Callable[[int], Awaitable[object]],
        inputs: Inputs,
        values: bool,
    ) -> None:
        """
        Args:
            rank: the learner rank that takes the pieces.
            published: waits until all inference ranks have a version.
            values: True to get the values of the critic, too.
        """
        self._pieces, self._policy, self._wait_published = pieces, policy, published
        self._inputs, self._values = inputs, values
        self._most = settings.max_batch_size
        # Numbered after the training shards and as many evaluation shards.
        self._asker = 2 * settings.plan.shards + rank
        # As many requests as inference ranks, and one that waits: to take back a piece that is not requested
        # yet costs nothing, and the pieces of a learner rank do not wait behind all those of another.
        self._under_way = asyncio.Semaphore(settings.plan.inference_ranks + 1)
        self._publication: tuple[int, asyncio.Future[object]] | None = None

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        pieces, last = await self._pieces.take(batch, whole=whole)
        # One wait per batch, however often pieces of it are taken.
        if self._publication is None or self._publication[0] != batch:
            self._publication = batch, asyncio.ensure_future(self._wait_published(batch))
        publication = self._publication[1]
        return [replace(piece, scores=self._begin(piece, batch, publication)) for piece in pieces], last

    def _begin(self, piece: Piece, version: int, publication: asyncio.Future[object]) -> Future[Tree]:
        scoring = self._score_piece(piece, version, publication)
        # A future of `concurrent.futures`: the learner reads and cancels it in another thread.
        return asyncio.run_coroutine_threadsafe(scoring, asyncio.get_running_loop())

    async def _score_piece(self, piece: Piece, version: int, publication: asyncio.Future[object]) -> Tree:
        """Return the scores of the piece by the policy of `version`, [T + 1, B, ...], once it is published.

        Raises:
            RuntimeError: another version has answered.
        """
        # Shielded, as all pieces of a batch wait for one future: taking one piece back must not cancel it.
        await asyncio.shield(publication)
        inputs = self._inputs(piece.payload)
        parts = in_parts(self._most, inputs.samples)
        answers = await asyncio.gather(*(self._ask(part, version) for part in parts))
        scores = inputs.at_their_rows(concatenate(answers))
        return map_tensors(lambda tensor: tensor.unflatten(0, (-1, piece.size)), scores)

    async def _ask(self, samples: Tree, version: int) -> Tree:
        async with self._under_way:
            request = ActionRequest(
                shard=self._asker,
                number=next(REQUEST_NUMBERS),
                size=size_of(samples),
                payload={"samples": samples, "values": self._values},
                mode="score",
            )
            answer = await self._policy.act(request)
        # The learner publishes no newer version before this batch is trained: another version here is a bug.
        if answer["version"] != version:
            raise RuntimeError(
                f"a batch that is anchored at version {version} was scored by version {answer['version']}"
            )
        scores: Tree = answer["scores"]
        return scores
