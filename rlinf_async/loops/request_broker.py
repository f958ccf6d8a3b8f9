"""The broker between action requests and idle inference ranks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from rlinf_async.core.failures import DeadlineError, PeerError, RankLost
from rlinf_async.core.restarts import Generations
from rlinf_async.core.types import ActionRequest, RequestKey
from rlinf_async.loops.queues import Queue, Queues
from rlinf_async.observe.meters import Spread


class KeyedRequest(Protocol):
    """A request that has a name."""

    @property
    def key(self) -> RequestKey: ...


@asynccontextmanager
async def answering(
    batch: Sequence[KeyedRequest],
    *,
    reply: Callable[[Sequence[RequestKey], Sequence[Any]], None],
    fail: Callable[[Sequence[RequestKey]], None],
) -> AsyncIterator[list[Any]]:
    """A block that fills the list with one answer per request of `batch`.

    Leaving it gives keys and answers to `reply`, and to `fail` the keys of those whose answer is a
    `PeerError`; if the block fails, or the answers are too few or too many, all of them.
    """
    keys = [pending.key for pending in batch]
    answers: list[Any] = []
    has_succeeded = False
    try:
        yield answers
        if len(answers) != len(keys):
            raise ValueError(f"{len(answers)} answers were given to {len(keys)} requests")
        pairs = list(zip(keys, answers, strict=True))
        if unanswered_keys := [key for key, answer in pairs if isinstance(answer, PeerError)]:
            fail(unanswered_keys)
        answer_pairs = [one for one in pairs if not isinstance(one[1], PeerError)]
        reply([key for key, _ in answer_pairs], [answer for _, answer in answer_pairs])
        has_succeeded = True
    finally:
        # Also when the block is cancelled: whoever has asked would wait for ever.
        if not has_succeeded:
            fail(keys)


async def asked_until_answered(request: ActionRequest, ask: Callable[[ActionRequest], Awaitable[Any]]) -> Any:
    """The answer to `request`, which is asked again as often as the rank that has taken it is lost."""
    while True:
        try:
            return await ask(request)
        except RankLost:
            request = replace(request, again=True)


def settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    """Give `future` the answer, or the error that prevented it."""
    if future.done():
        return  # the asker has given up
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that waits for its answer."""

    request: ActionRequest
    arrived: float = math.nan
    """On the clock of the process that batches."""

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def shard(self) -> int:
        return self.request.shard

    @property
    def size(self) -> int:
        return self.request.size

    @property
    def lap(self) -> tuple[int, int] | None:
        return self.request.lap


Asker = Callable[[Any, Exception | None], None]
"""Takes the answer to a request, or the error that prevented it."""


class RequestBroker:
    """Hands batches of requests to idle inference ranks, and keeps book until each is known to be settled.

    A request is in the book until its asker has confirmed the answer (`settled`), or is told the error that
    prevented it. Who asks within this process is answered here; to others a rank sends the answer itself,
    so that the broker never sees one. Where a rank is lost, whoever has not confirmed is told, and asks again
    if it still waits (`asked_until_answered`); where a shard is lost, its requests are forgotten. Every call
    bears the generation of its caller; calls of a lost one are ignored.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._deadline_s = queues.deadline_s
        self._overdue: asyncio.TimerHandle | None = None
        self._open_requests: dict[RequestKey, tuple[Pending, Asker]] = {}
        """Requests that are not known to be settled, in the order of their arrival."""
        self._taking_ranks: dict[RequestKey, int] = {}
        """The rank that has taken such a request."""
        self._shards, self._ranks = Generations(), Generations()
        self._is_closed = False
        self.batch_size = Spread()
        self.batch_wait = Spread()
        self.again = 0
        """Requests that were asked again because their rank was lost."""

    @property
    def waiting(self) -> int:
        """Requests that no rank has taken yet."""
        return sum(len(queue.batcher) for queue in self._queues)

    def begin(self, shard: int, generation: int = 0) -> None:
        """Note that `shard` starts a rollout, and will ask for actions."""
        if self._shards.lives(shard, generation):
            self._queues.begin(shard)

    def end(self, shard: int, generation: int = 0) -> None:
        """Note that `shard` has ended its rollout, so that no batch waits for its requests."""
        if self._shards.lives(shard, generation):
            self._queues.end(shard)

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        """The block in which `shard` is in flight."""
        self.begin(shard)
        try:
            yield
        finally:
            self.end(shard)

    async def act(self, request: ActionRequest) -> Any:
        """Queue a request and wait for its answer.

        Raises:
            PeerError: inference failed or has closed.
            DeadlineError: no answer came in time.
        """
        return await asked_until_answered(request, self._act)

    async def _act(self, request: ActionRequest) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.ask(request, partial(settle, answer))
        try:
            return await answer
        finally:
            # Also where the asker was cancelled: no rank makes a pass for what no one waits for.
            self.settled([request.key])

    def ask(self, request: ActionRequest, asker: Asker) -> None:
        """Queue a request. `asker` is called with the answer that is given here, or with what prevented it.

        That may be at once: inference has closed, or the process that asks was lost.
        """
        if self._is_closed or not self._shards.lives(request.shard, request.generation):
            why = "inference had closed" if self._is_closed else "its env worker was lost"
            # Called within `ask`: an asker must have noted the request before it asks.
            return asker(None, PeerError(f"shard {request.shard} asked for actions after {why}"))
        pending = Pending(request=request, arrived=_now())
        queue = self._queues.of(request)
        # First: a request that the batcher refuses is in no book.
        queue.batcher.add(pending, pending.arrived)
        self._open_requests[pending.key] = (pending, asker)
        self.again += request.again
        if self._overdue is None:
            self._expect_within(self._deadline_s)
        self._queues.wake(queue)

    def settled(self, keys: Iterable[RequestKey]) -> None:
        """Forget requests for whose answers nobody waits any more: they are there, or were given up."""
        for key in keys:
            self._forget(key)

    async def take(self, rank: int, node: str = "", generation: int = 0) -> list[Pending] | None:
        """The next batch for `rank`, which runs on `node`; None when the broker is closed and drained."""
        await asyncio.sleep(0)  # requests that have already arrived join this batch
        batch = await self._queues.bell(rank, node).first(
            lambda: self._next_batch(rank, node, generation),
            waiting_for=lambda: f"a request to inference rank {rank}",
            wake=lambda: _until_deadline(self._queues.open_to(rank, node)),
        )
        for queue in self._queues:
            if len(queue.batcher):
                self._queues.wake(queue)  # what is left concerns the next idle rank
        return batch or None

    def serves(self, rank: int, generation: int) -> bool:
        """Return True if calls of that generation of `rank` still count."""
        return self._ranks.lives(rank, generation)

    def reply(self, keys: Sequence[RequestKey], answers: Sequence[Any]) -> None:
        """Answer the requests of a batch, in its order."""
        for key, answer in zip(keys, answers, strict=True):
            self._tell(key, answer, None)

    def fail(self, keys: Sequence[RequestKey], message: str) -> None:
        """Raise a `PeerError` of `message` in each request of a batch whose forward pass has failed."""
        for key in keys:
            self._tell(key, None, PeerError(message))

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        """A block that fills the list with one answer per request; see `RequestPort.answering`."""
        why = f"the forward pass for {len(batch)} requests failed"
        return answering(batch, reply=self.reply, fail=lambda keys: self.fail(keys, why))

    def rank_lost(self, rank: int, generation: int) -> None:
        """`rank` has died: who waits for what it had taken asks again. Its successor is `generation`.

        The asker is told, as it alone knows whether the answer came before the death. Another rank that was
        given the request of an asker that has its answer would read memory that holds the next observation.
        """
        self._ranks.begin([rank], generation)
        # In a list: whoever is told is taken out of the book.
        for key in [key for key, by in self._taking_ranks.items() if by == rank]:
            self._tell(key, None, RankLost(f"inference rank {rank} was lost"))
        # The dead may have been woken for a request that it takes no more: another rank is to look again.
        self._queues.ring()

    def shards_lost(self, shards: Collection[int], generation: int) -> None:
        """Forget the requests of `shards`, whose env worker has died; its successor is `generation`."""
        self._shards.begin(shards, generation)
        for key in [key for key in self._open_requests if key[0] in shards]:
            self._tell(key, None, PeerError("the env worker that asked was lost"))
        # A barrier would wait for ever for a shard that has died in the midst of a rollout.
        for shard in shards:
            self._queues.end(shard)

    def close(self) -> None:
        """No more requests will come: ranks drain what waits and return."""
        self._is_closed = True
        self._queues.ring()

    def _next_batch(self, rank: int, node: str, generation: int) -> list[Pending] | None:
        """A batch that is due, [] when there will be none any more, None while there is nothing to do."""
        if not self._ranks.lives(rank, generation):
            return []
        now = _now()
        for queue in self._queues.open_to(rank, node):
            if batch := queue.batcher.drain() if self._is_closed else queue.batcher.take(now):
                self._queues.taken(rank, queue)
                # In the book before the rank has them: if it dies on the way, `rank_lost` finds them.
                self._taking_ranks.update({pending.key: rank for pending in batch})
                if batch[0].request.mode != "score":
                    self.batch_size.add(sum(pending.size for pending in batch))
                    self.batch_wait.add(now - min(pending.arrived for pending in batch))
                return batch
        return [] if self._is_closed else None

    def _tell(self, key: RequestKey, answer: Any, error: Exception | None) -> None:
        # Forgotten first: the asker may come back with its next request, or raise.
        if (asker := self._forget(key)) is not None:
            asker(answer, error)

    def _forget(self, key: RequestKey) -> Asker | None:
        if key not in self._open_requests:
            return None
        pending, asker = self._open_requests.pop(key)
        if self._taking_ranks.pop(key, None) is None:
            self._queues.of(pending.request).batcher.remove(pending)
        return asker

    def _expect_within(self, seconds: float) -> None:
        """One timer serves all requests: they have one deadline, so the oldest is the first to reach it."""
        if not math.isinf(seconds):
            self._overdue = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Fail the requests that have waited too long, and look again when the oldest other one will have."""
        self._overdue, now = None, _now()
        while self._open_requests:
            key, (pending, _) = next(iter(self._open_requests.items()))
            seconds = pending.arrived + self._deadline_s - now
            if seconds > 0:
                return self._expect_within(seconds)
            message = (
                f"shard {pending.shard} waited {self._deadline_s:g} s for actions: "
                f"{len(self._open_requests) - len(self._taking_ranks)} requests wait, "
                f"{len(self._taking_ranks)} were taken and are not known to be answered"
            )
            self._tell(key, None, DeadlineError(message))


def _until_deadline(queues: Iterable[Queue[Any]]) -> float | None:
    deadlines = [queue.batcher.deadline for queue in queues if queue.batcher.deadline is not None]
    return min(deadlines) - _now() if deadlines else None


class RankRequests:
    """The inference side of the request broker, for one rank; fills `loops.ports.RequestPort`."""

    def __init__(self, broker: RequestBroker, rank: int) -> None:
        self._broker = broker
        self._rank = rank

    async def take(self) -> list[Pending] | None:
        return await self._broker.take(self._rank)

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        return self._broker.answering(batch)


def _now() -> float:
    """The time of the event loop, in seconds; its clock is the one of spans, too."""
    return asyncio.get_running_loop().time()
