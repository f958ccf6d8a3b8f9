"""What the loops wait for and work on, recorded: each class stands before the port of its name.

Neither the loops nor the ports know of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from rlinf_async.core.spans import SpanLog
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.loops import ports


class TracedEnv:
    """Spans `reset` and `step` of one shard."""

    def __init__(self, env: ports.ShardEnv, spans: SpanLog, *, shard: int) -> None:
        self._env = env
        self._spans = spans
        self._shard = shard
        self.size = env.size
        self.horizon = env.horizon
        self.observation = env.observation
        self.finish = env.finish

    async def start(self) -> Any:
        with self._spans.span("reset", shard=self._shard):
            return await self._env.start()

    async def step(self, answer: Any) -> Any:
        with self._spans.span("step", shard=self._shard):
            return await self._env.step(answer)


class TracedPolicyPort:
    """Span `ask`: from a request to its answer."""

    def __init__(self, policy: ports.PolicyPort, spans: SpanLog) -> None:
        self._policy = policy
        self._spans = spans

    def rollout(self, shard: int) -> AbstractAsyncContextManager[None]:
        return self._policy.rollout(shard)

    async def act(self, request: ActionRequest) -> Any:
        facts = {"mode": request.mode} if request.mode != "train" else {}
        with self._spans.span("ask", shard=request.shard, **facts):
            return await self._policy.act(request)


class TracedTrajectories:
    """Spans `gate` and `put`, and `rollout` from one to the other."""

    def __init__(self, trajectories: ports.TrajectoryPort, spans: SpanLog) -> None:
        self._trajectories = trajectories
        self._spans = spans
        self._admitted: dict[int, float] = {}

    async def admit(self, shard: int) -> Ticket | None:
        with self._spans.span("gate", shard=shard):
            ticket = await self._trajectories.admit(shard)
        self._admitted[shard] = self._spans.now()
        return ticket

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        names = {
            "shard": ticket.shard,
            "batch": ticket.batch,
            "epoch": ticket.epoch,
            "place": ticket.place,
        }
        with self._spans.span("put", **names):
            await self._trajectories.put(ticket, pieces)
        self._spans.add(
            "rollout",
            self._admitted.pop(ticket.shard),
            **names,
            version=ticket.version,
            oldest=min(piece.oldest for piece in pieces),
            newest=max(piece.newest for piece in pieces),
        )


class TracedRequests:
    """Span `idle`: an inference rank waits for requests. Its batch is named in `forward`."""

    def __init__(self, requests: ports.RequestPort, spans: SpanLog) -> None:
        self._requests = requests
        self._spans = spans

    async def take(self) -> Sequence[Any] | None:
        with self._spans.span("idle"):
            return await self._requests.take()

    @asynccontextmanager
    async def answering(self, batch: Sequence[Any]) -> AsyncIterator[list[Any]]:
        async with self._requests.answering(batch) as answers:
            with self._spans.span(
                "forward",
                shards=[pending.shard for pending in batch],
                size=sum(pending.size for pending in batch),
            ):
                yield answers


class TracedWeights:
    """Span `load`: from the moment that new weights are there until the policy acts by them."""

    def __init__(self, weights: ports.WeightPort, spans: SpanLog) -> None:
        self._weights = weights
        self._spans = spans
        self._arrived = 0.0

    async def next(self) -> tuple[int, Any] | None:
        offered = await self._weights.next()
        self._arrived = self._spans.now()
        return offered

    async def applied(self, version: int) -> None:
        self._spans.add("load", self._arrived, version=version)
        await self._weights.applied(version)


class TracedPieces:
    """Span `fetch`: a learner rank asks for trajectories, perhaps while it trains on earlier ones."""

    def __init__(self, pieces: ports.PiecePort, spans: SpanLog) -> None:
        self._pieces = pieces
        self._spans = spans

    async def take(self, batch: int, *, whole: bool) -> tuple[Sequence[Piece], bool]:
        with self._spans.span("fetch", batch=batch):
            return await self._pieces.take(batch, whole=whole)


class TracedLearner:
    """Spans `accept`, which names the trajectories, and `finish`."""

    def __init__(self, learner: ports.Learner, spans: SpanLog) -> None:
        self._learner = learner
        self._spans = spans
        self._batch = -1

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._learner.begin(batch)

    def accept(self, pieces: Sequence[Piece]) -> None:
        facts = [
            [p.ticket.place, p.ticket.epoch, p.part, p.size, p.ticket.batch - p.oldest, p.newest - p.oldest]
            for p in pieces
        ]
        with self._spans.span("accept", batch=self._batch, pieces=facts):
            self._learner.accept(pieces)

    def finish(self) -> dict[str, float]:
        with self._spans.span("finish", batch=self._batch):
            return self._learner.finish()
