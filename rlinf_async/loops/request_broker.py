"""The broker between action requests and idle inference ranks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from rlinf_async.core.failures import DeadlineError, PeerError, RankLost
from rlinf_async.core.restarts import Generations
from rlinf_async.core.types import ActionRequest, RequestKey
from rlinf_async.loops.queues import Queue, Queues, SharedQueues
from rlinf_async.loops.requests import Pending, answering, asked_until_answered, settle
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import Spread

Asker = Callable[[Any, Exception | None], None]
"""Takes the answer to a request, or the error that prevented it."""


class RequestBroker:
    """Hands batches of requests to idle inference ranks, and keeps each request until it is settled.

    A request is open until its asker has confirmed the answer (`settled`), or was told the error that
    prevented it. Callers in this process get the answer from the broker; remote callers get it straight from
    the rank, so that the broker never sees it. If a rank is lost, the askers of its open requests are told,
    and repeat those that they still wait for (`asked_until_answered`). If a shard is lost, its requests are
    forgotten. Every call carries the generation of its caller; calls of a lost generation are ignored.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._deadline_s = queues.deadline_s
        self._overdue: asyncio.TimerHandle | None = None
        self._open_requests: dict[RequestKey, tuple[Pending, Asker]] = {}
        """Requests that are not known to be settled, in the order of their arrival."""
        self._taking_ranks: dict[RequestKey, int] = {}
        """The rank that has taken an open request."""
        self._shards, self._ranks = Generations(), Generations()
        self._is_closed = False
        self.batch_size = Spread()
        self.batch_wait = Spread()
        self.waited = Spread()
        """Seconds that requests waited to be taken, since the run began."""
        self.again = 0
        """Requests that were sent again because their rank was lost."""

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
        """`shard` is in flight inside the block."""
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
            # Also if the asker was cancelled, so that no rank computes an answer that is not used.
            self.settled([request.key])

    def ask(self, request: ActionRequest, asker: Asker, *, asked: float | None = None) -> None:
        """Queue a request, which was sent at `asked`, on the clock of this process; by default now.

        `asker` is called with the answer if a rank replies through the broker, or with the error that
        prevented it; at once if inference has closed or the asking process was lost.
        """
        if self._is_closed or not self._shards.lives(request.shard, request.generation):
            why = "inference had closed" if self._is_closed else "its env worker was lost"
            # Called before `ask` returns, so that an asker must record its request before it calls `ask`.
            return asker(None, PeerError(f"shard {request.shard} asked for actions after {why}"))
        pending = Pending(request=request, arrived=_now() if asked is None else asked)
        queue = self._queues.of(request)
        # First, as the batcher may refuse the request, which then must not be open.
        queue.batcher.add(pending, pending.arrived)
        self._open_requests[pending.key] = (pending, asker)
        self.again += request.again
        if self._overdue is None:
            self._expect_within(self._deadline_s)
        self._queues.wake(queue)

    def settled(self, keys: Iterable[RequestKey]) -> None:
        """Forget requests that were answered or given up."""
        for key in keys:
            self._forget(key)

    async def take(
        self,
        rank: int,
        node: str = "",
        generation: int = 0,
        *,
        wait_s: float = math.inf,
        waited_s: float = 0.0,
    ) -> list[Pending] | None:
        """The next batch for `rank`, which runs on `node`; None when the broker is closed and drained.

        Args:
            wait_s: return [] if there is no batch within this time.
            waited_s: take only a batch with a request that has waited for at least this time.
        """
        await asyncio.sleep(0)  # requests that have already arrived join this batch
        until = _now() + wait_s

        def attempt() -> list[Pending] | None:
            batch = self._next_batch(rank, node, generation, waited_s)
            return [] if batch is None and _now() >= until else batch

        batch = await self._queues.bell(rank, node).first(
            attempt,
            waiting_for=lambda: f"a request to inference rank {rank}",
            wake=lambda: _seconds_until([until, *_deadlines(self._queues.open_to(rank, node))]),
        )
        return self._taken(batch, rank, generation)

    def take_now(
        self, rank: int, node: str = "", generation: int = 0, *, waited_s: float = 0.0
    ) -> list[Pending] | None:
        """`take`, without a wait: [] if there is no batch now."""
        return self._taken(self._next_batch(rank, node, generation, waited_s) or [], rank, generation)

    def _taken(self, batch: list[Pending], rank: int, generation: int) -> list[Pending] | None:
        for queue in self._queues:
            if len(queue.batcher):
                self._queues.wake(queue)  # the next idle rank takes the remaining requests
        return None if not batch and self._is_over_for(rank, generation) else batch

    def _is_over_for(self, rank: int, generation: int) -> bool:
        return self._is_closed or not self._ranks.lives(rank, generation)

    def serves(self, rank: int, generation: int) -> bool:
        """Return True if calls of that generation of `rank` still count."""
        return self._ranks.lives(rank, generation)

    def reply(self, keys: Sequence[RequestKey], answers: Sequence[Any]) -> None:
        """Answer the requests of `keys`, in their order."""
        for key, answer in zip(keys, answers, strict=True):
            self._tell(key, answer, None)

    def fail(self, keys: Sequence[RequestKey], message: str) -> None:
        """Fail the requests of `keys` with a `PeerError`, after their forward pass has failed."""
        for key in keys:
            self._tell(key, None, PeerError(message))

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        """The block must fill the list with one answer per request; see `RequestPort.answering`."""
        why = f"the forward pass for {len(batch)} requests failed"
        return answering(batch, reply=self.reply, fail=lambda keys: self.fail(keys, why))

    def rank_lost(self, rank: int, generation: int) -> None:
        """`rank` died. The requests that it had taken are sent again. Its replacement has `generation`.

        Their askers are told, as an asker alone knows whether the answer came before the death. If the broker
        gave an answered request to another rank, that rank would read memory that already holds the next
        observation.
        """
        self._ranks.begin([rank], generation)
        self._ask_again(rank)
        # The dead rank may have been woken for a request that it no longer takes: wake the others for it.
        self._queues.ring()

    def way_lost(self, rank: int, generation: int) -> None:
        """The connection to `rank` has ended, and the rank will use another: a batch on its way may be lost.
        The requests that it had taken are sent again, as in `rank_lost`.
        """
        if self._ranks.lives(rank, generation):
            self._ask_again(rank)

    def shards_lost(self, shards: Collection[int], generation: int) -> None:
        """The env worker of `shards` died: forget their requests. Its replacement has `generation`."""
        self._shards.begin(shards, generation)
        for key in [key for key in self._open_requests if key[0] in shards]:
            self._tell(key, None, PeerError("the env worker that asked was lost"))
        # A barrier would wait for ever for a shard that has died during a rollout.
        for shard in shards:
            self._queues.end(shard)

    def close(self) -> None:
        """No more requests will come: ranks answer the waiting requests and return."""
        self._is_closed = True
        self._queues.ring()

    def _next_batch(self, rank: int, node: str, generation: int, waited_s: float) -> list[Pending] | None:
        """Return a batch that is due, None while there is none, or [] if there will be no more."""
        if not self._ranks.lives(rank, generation):
            return []
        now = _now()
        for queue in self._queues.open_to(rank, node, arrived_by=now - waited_s):
            if batch := queue.batcher.drain() if self._is_closed else queue.batcher.take(now):
                self._queues.taken(rank, queue)
                # Before the rank has the batch: if it dies before that, `rank_lost` finds the requests.
                self._taking_ranks.update({pending.key: rank for pending in batch})
                if batch[0].request.mode != "score":
                    self.batch_size.add(sum(pending.size for pending in batch))
                    waits = [now - pending.arrived for pending in batch]
                    self.batch_wait.add(max(waits))
                    self.waited.add(sum(waits) / len(waits), weight=len(waits))
                return batch
        return [] if self._is_closed else None

    def _ask_again(self, rank: int) -> None:
        """Have the requests that `rank` has taken sent again; see `rank_lost`."""
        # A list, as `_tell` removes entries.
        for key in [key for key, by in self._taking_ranks.items() if by == rank]:
            self._tell(key, None, RankLost(f"inference rank {rank} was lost"))

    def _tell(self, key: RequestKey, answer: Any, error: Exception | None) -> None:
        # Forgotten first, as the asker may send its next request from within the call, or raise.
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
        """Set the one timer of all requests: they share a deadline, so that the oldest reaches it first."""
        if not math.isinf(seconds):
            self._overdue = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Fail the requests that have waited too long, and set the timer for the oldest of the others."""
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


def _deadlines(queues: Iterable[Queue[Any]]) -> list[float]:
    return [queue.batcher.deadline for queue in queues if queue.batcher.deadline is not None]


def _seconds_until(times: Iterable[float]) -> float | None:
    """Return the seconds until the first of `times`; None if none of them ever comes."""
    first = min(times)
    return None if math.isinf(first) else first - _now()


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
    """The time of the event loop, in seconds; spans use the same clock."""
    return asyncio.get_running_loop().time()


def request_broker(settings: RunSettings) -> RequestBroker:
    """Return the broker of requests of a run: with dynamic batches (level 2), or batches of all shards in
    flight."""
    asynchrony = settings.asynchrony
    rollout, deadline_s = asynchrony.rollout, asynchrony.advanced.deadline_s
    if not rollout.enabled:
        from rlinf_async.loops.barrier import BarrierQueues  # for runs without level 2

        in_step = asynchrony.deterministic
        return RequestBroker(BarrierQueues(settings.plan, deadline_s=deadline_s, in_step=in_step))
    return RequestBroker(
        SharedQueues(max_size=settings.max_batch_size, max_wait=rollout.max_wait, deadline_s=deadline_s)
    )
