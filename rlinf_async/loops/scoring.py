"""Pieces of a batch are scored by whoever is first: an idle inference rank, or the learner itself.

Theory of operation. Batch `b` is anchored at the policy of version `b`, with which its training begins. The
inference ranks get that version when the batch before has been trained, and get the next one only when this
batch has: while `b` is trained, they hold its anchor. So a rank that nobody asks for actions can make the
pass without gradients that the learner would make over a piece.

A learner rank asks for the scores of its pieces as they arrive, in that order, and waits for none of them.
When it gets to its next pieces it takes those whose scores are there; if there are none, it takes back what
inference would get to last, and scores that by itself (`StreamingLearner`). A piece's scores are a future:
cancelling it takes the piece back, and says whether it came too late. So every piece is anchored once, by one
of the two.

Samples without a gradient are in no request, as they are in no pass of the learner: a host says which rows of
a piece are to be scored (`core.scores.ToScore`). The others have scores of 0, which nobody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rlinf_async.core.scores import ToScore
from rlinf_async.core.tensors import Tree, concatenate, in_parts, map_tensors, size_of
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Piece
from rlinf_async.loops.ports import PiecePort, PolicyPort, TakenPieces
from rlinf_async.loops.run_settings import RunSettings

Inputs = Callable[[Any], ToScore]
"""Of a piece's payload, what is to be scored of it."""


class ScoredPieces:
    """The pieces of another port, which inference is asked to score meanwhile; fills `PiecePort`."""

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
            rank: the learner rank that takes them.
            published: waits until all inference ranks have a version.
            values: whether there is a critic whose values are wanted, too.
        """
        self._pieces, self._policy, self._wait_published = pieces, policy, published
        self._inputs, self._values = inputs, values
        self._most = settings.max_batch_size
        # Beyond the shards for training, and those for evaluation, of which there are as many.
        self._asker = 2 * settings.plan.shards + rank
        # As many as inference can work on, and one that waits: what is not asked for yet is taken back for
        # nothing, and no learner rank's pieces wait behind all of another's.
        self._under_way = asyncio.Semaphore(settings.plan.inference_ranks + 1)
        self._publication: tuple[int, asyncio.Future[object]] | None = None

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        pieces, last = await self._pieces.take(batch, whole=whole)
        # One wait a batch, however often pieces of it are taken.
        if self._publication is None or self._publication[0] != batch:
            self._publication = batch, asyncio.ensure_future(self._wait_published(batch))
        publication = self._publication[1]
        return [replace(piece, scores=self._begin(piece, batch, publication)) for piece in pieces], last

    def _begin(self, piece: Piece, version: int, publication: asyncio.Future[object]) -> Future[Tree]:
        scoring = self._score_piece(piece, version, publication)
        # A future of threads and not of the loop: the learner looks at it, and cancels it, in its own thread.
        return asyncio.run_coroutine_threadsafe(scoring, asyncio.get_running_loop())

    async def _score_piece(self, piece: Piece, version: int, publication: asyncio.Future[object]) -> Tree:
        """The scores of the piece by the policy of `version`, [T + 1, B, ...], once that is published.

        Raises:
            RuntimeError: another version has answered.
        """
        # Shielded, as all pieces of a batch wait for one future: one that is taken back must not cancel it.
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
        # The learner publishes no newer version before this batch is trained, so that another one here is a
        # bug.
        if answer["version"] != version:
            raise RuntimeError(
                f"a batch that is anchored at version {version} was scored by version {answer['version']}"
            )
        scores: Tree = answer["scores"]
        return scores
