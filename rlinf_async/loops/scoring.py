"""A batch is scored by inference while the learner trains on what comes first (`scorer: inference`).

Theory of operation. Batch `b` is anchored at the policy of version `b`, with which its training begins. The
inference ranks get that version when the batch before has been trained, and get the next one only when this
batch has: while `b` is trained, they hold its anchor. So they can make the pass without gradients that the
learner would make over every piece, between the requests of env shards, with which it shares nothing but
their time.

A learner rank begins at once, by the pieces that it takes in first, which it scores by itself, as version `b`
is still on its way then. The others it asks for, and takes in when their scores have come. Which are which
follows from counts alone, so that all ranks of a sharded model make the same passes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.core.tensors import Tree, concatenate, in_parts, map_tensors, size_of
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Piece
from rlinf_async.loops.ports import PiecePort, PolicyPort, Scorer, TakenPieces
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.waiting import Bell


class ScoredPieces:
    """The pieces of another port, with scores where they are not the first of a batch; fills `PiecePort`."""

    def __init__(
        self, pieces: PiecePort, scorer: Scorer, *, first: int, deadline_s: float = math.inf
    ) -> None:
        """The `first` pieces of each batch come as they are."""
        self._pieces, self._scorer, self._first = pieces, scorer, first
        self._batch = -1
        self._ready: list[Piece] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that will bring more of the batch."""
        self._bell = Bell(deadline_s=deadline_s)

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        """As of the other port; what is scored comes in the order in which its scores do."""
        if batch != self._batch:
            self._batch = batch
            self._begin(self._arrivals())

        def attempt() -> TakenPieces | None:
            # `_arrivals` is one of the tasks: while it runs, more pieces may come.
            if self._tasks and (whole or not self._ready):
                return None
            ready, self._ready = self._ready, []
            return ready, not self._tasks

        try:
            return await self._bell.first(attempt, waiting_for=lambda: f"pieces of batch {batch}, or scores")
        except BaseException:
            self._give_up()
            raise

    def fail(self, error: BaseException) -> None:
        """Raise `error` in every wait, now and later."""
        self._bell.fail(error)
        self._give_up()

    async def _arrivals(self) -> None:
        as_they_are, last = self._first, False
        while not last:
            arrived, last = await self._pieces.take(self._batch, whole=False)
            self._ready += arrived[:as_they_are]
            self._bell.ring()
            for piece in arrived[as_they_are:]:
                self._begin(self._scored(piece))
            as_they_are = max(0, as_they_are - len(arrived))

    async def _scored(self, piece: Piece) -> None:
        scores = await self._scorer.score(piece, self._batch)
        self._ready.append(replace(piece, scores=scores))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # What it would have brought is missing: the batch is not complete.
            self._bell.fail(PeerError(f"the scores of batch {self._batch} will not be complete"))
        elif (error := task.exception()) is not None:
            self._bell.fail(error)
        else:
            self._bell.ring()

    def _give_up(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class InferenceScorer:
    """Has pieces scored by the inference ranks, in requests of a batch's size; fills `Scorer`."""

    def __init__(
        self,
        policy: PolicyPort,
        published: Callable[[int], Awaitable[object]],
        *,
        inputs: Callable[[Any], Tree],
        values: bool,
        asker: int,
        most: int,
    ) -> None:
        """
        Args:
            published: waits until all inference ranks have a version.
            inputs: of a piece's payload, what a policy is scored by: [(T + 1) * B, ...], with anything in the
                place of the last actions, which have not been taken.
            values: whether there is a critic whose values are wanted, too.
            asker: the number to ask under, which no shard has.
            most: samples in one request.
        """
        self._policy, self._published = policy, published
        self._inputs, self._values, self._asker, self._most = inputs, values, asker, most
        self._there: tuple[int, asyncio.Future[object]] | None = None

    async def score(self, piece: Piece, version: int) -> Tree:
        """See `Scorer`.

        Raises:
            RuntimeError: another version has answered.
        """
        await self._has(version)
        parts = in_parts(self._most, self._inputs(piece.payload))
        answers = await asyncio.gather(*(self._ask(part, version) for part in parts))
        scores = concatenate(answers)
        return map_tensors(lambda tensor: tensor.unflatten(0, (-1, piece.size)), scores)

    async def _has(self, version: int) -> None:
        if self._there is None or self._there[0] != version:
            self._there = version, asyncio.ensure_future(self._published(version))
        # Shielded, as all pieces of a batch wait for one future: a cancelled piece must not cancel it for the
        # others.
        await asyncio.shield(self._there[1])

    async def _ask(self, samples: Tree, version: int) -> Tree:
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


def scored_pieces(
    pieces: PiecePort,
    policy: PolicyPort,
    settings: RunSettings,
    *,
    rank: int,
    published: Callable[[int], Awaitable[object]],
    inputs: Callable[[Any], Tree],
    values: bool,
) -> ScoredPieces:
    """The pieces of learner rank `rank` in a run whose batches inference scores; see `InferenceScorer`."""
    scorer = InferenceScorer(
        policy,
        published,
        inputs=inputs,
        values=values,
        # Beyond the shards for training, and those for evaluation, of which there are as many.
        asker=2 * settings.plan.shards + rank,
        most=settings.max_batch_size,
    )
    return ScoredPieces(
        pieces,
        scorer,
        first=settings.pieces_taken_together,
        deadline_s=settings.asynchrony.advanced.deadline_s,
    )
