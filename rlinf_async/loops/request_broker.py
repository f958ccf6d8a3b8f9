"""Where action requests meet idle inference ranks."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.tracing import Spread
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.lanes import BarrierLanes, Lane, Lanes, SharedLanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that waits for its answer, under a number that may travel."""

    number: int
    request: ActionRequest
    arrived: float = math.nan
    """On the clock of the process that batches."""

    @property
    def shard(self) -> int:
        return self.request.shard

    @property
    def size(self) -> int:
        return self.request.size


Asker = Callable[[Any, Exception | None], None]
"""Takes the answer to a request, or the error that prevented it."""


class RequestBroker:
    """Hands batches of requests to idle inference ranks and their answers back to the shards.

    Every request is answered exactly once: with actions, or with the error that prevented them.
    """

    def __init__(self, lanes: Lanes, *, deadline_s: float = math.inf) -> None:
        self._lanes = lanes
        self._deadline_s = deadline_s
        self._overdue: asyncio.TimerHandle | None = None
        self._asked: dict[int, tuple[Pending, Asker]] = {}
        """Requests that are not answered yet, in the order of their arrival."""
        self._taken: set[int] = set()
        self._numbers = itertools.count()
        self._closed = False
        self.batch_size = Spread()
        self.batch_wait = Spread()

    @classmethod
    def dynamic(cls, *, max_size: int, max_wait: float, deadline_s: float) -> RequestBroker:
        """Level 2 on."""
        batcher = partial(DynamicBatcher[Pending], max_size=max_size, max_wait=max_wait)
        return cls(SharedLanes(batcher, deadline_s=deadline_s), deadline_s=deadline_s)

    @classmethod
    def barrier(cls, plan: ShardPlan, *, deadline_s: float, in_step: bool = False) -> RequestBroker:
        """Level 2 off; see `BarrierLanes`."""
        return cls(BarrierLanes(plan, deadline_s=deadline_s, in_step=in_step), deadline_s=deadline_s)

    @property
    def waiting(self) -> int:
        """Requests that no rank has taken yet."""
        return sum(len(lane.batcher) for lane in self._lanes)

    def begin(self, shard: int) -> None:
        """`shard` starts a rollout."""
        self._lanes.begin(shard)

    def end(self, shard: int) -> None:
        """`shard` has ended its rollout."""
        self._lanes.end(shard)

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
            DeadlineError: nobody answered in time.
        """
        answer = asyncio.get_running_loop().create_future()
        number = self.ask(request, partial(settle, answer))
        try:
            return await answer
        finally:
            self._forget(number)

    def ask(self, request: ActionRequest, asker: Asker) -> int:
        """Queue a request, whose answer `asker` is called with; returns its number.

        Raises:
            PeerError: inference has closed.
        """
        if self._closed:
            raise PeerError(f"shard {request.shard} asked for actions after inference had closed")
        pending = Pending(number=next(self._numbers), request=request, arrived=time.monotonic())
        lane = self._lanes.of(request.shard, request.node)
        lane.batcher.add(pending, pending.arrived)
        self._asked[pending.number] = (pending, asker)
        if self._overdue is None:
            self._expect_within(self._deadline_s)
        self._lanes.wake(lane)
        return pending.number

    async def take(self, rank: int, node: str = "") -> list[Pending] | None:
        """The next batch for `rank`, which runs on `node`; None when the broker is closed and drained."""
        await asyncio.sleep(0)  # requests that have already arrived join this batch
        batch = await self._lanes.bell(rank, node).first(
            lambda: self._next_batch(rank, node),
            waiting_for=lambda: f"a request to inference rank {rank}",
            wake=lambda: _until_deadline(self._lanes.open_to(rank, node)),
        )
        for lane in self._lanes:
            if len(lane.batcher):
                self._lanes.wake(lane)  # what is left concerns the next idle rank
        return batch or None

    def reply(self, numbers: Sequence[int], answers: Sequence[Any]) -> None:
        """Answer the requests of a batch, in its order."""
        for number, answer in zip(numbers, answers, strict=True):
            self._tell(number, answer, None)

    def fail(self, numbers: Sequence[int], message: str) -> None:
        """The forward pass of a batch failed: its requesters are told."""
        for number in numbers:
            self._tell(number, None, PeerError(message))

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        """A block that fills the list with one answer per request; see `RequestPort.answering`."""

        async def fail(numbers: Sequence[int]) -> None:
            self.fail(numbers, f"the forward pass for {len(batch)} requests failed")

        return answering(batch, reply=self.reply, fail=fail)

    def close(self) -> None:
        """No more requests will come: ranks drain what waits and return."""
        self._closed = True
        self._lanes.ring()

    def _next_batch(self, rank: int, node: str) -> list[Pending] | None:
        """A batch that is due, [] when closed and drained, None while there is nothing to do."""
        now = time.monotonic()
        for lane in self._lanes.open_to(rank, node):
            batch: list[Pending] = lane.batcher.drain() if self._closed else lane.batcher.take(now)
            if batch:
                self._taken.update(self._asked.keys() & {pending.number for pending in batch})
                self.batch_size.add(sum(pending.size for pending in batch))
                self.batch_wait.add(now - min(pending.arrived for pending in batch))
                return batch
        return [] if self._closed else None

    def _tell(self, number: int, answer: Any, error: Exception | None) -> None:
        if number in self._asked:
            _, asker = self._asked[number]
            self._forget(number)
            asker(answer, error)

    def _forget(self, number: int) -> None:
        self._asked.pop(number, None)
        self._taken.discard(number)

    def _expect_within(self, seconds: float) -> None:
        """One timer serves all requests: they have one deadline, so the oldest is the first to reach it."""
        if not math.isinf(seconds):
            self._overdue = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Fail the requests that have waited too long, and look again when the oldest other one will have."""
        self._overdue, now = None, time.monotonic()
        while self._asked:
            number, (pending, _) = next(iter(self._asked.items()))
            left = pending.arrived + self._deadline_s - now
            if left > 0:
                return self._expect_within(left)
            message = (
                f"shard {pending.shard} waited {self._deadline_s:g} s for actions: "
                f"{len(self._asked) - len(self._taken)} requests wait, {len(self._taken)} are being answered"
            )
            self._tell(number, None, DeadlineError(message))


@asynccontextmanager
async def answering(
    batch: Sequence[Pending],
    *,
    reply: Callable[[Sequence[int], Sequence[Any]], None],
    fail: Callable[[Sequence[int]], Awaitable[None]],
) -> AsyncIterator[list[Any]]:
    """A block that fills the list with one answer per request of `batch`.

    Leaving it gives numbers and answers to `reply`; if the block fails, or the answers are too few or too
    many, nobody waits for them: the numbers go to `fail`.
    """
    numbers = [pending.number for pending in batch]
    answers: list[Any] = []
    succeeded = False
    try:
        yield answers
        if len(answers) != len(numbers):
            raise ValueError(f"{len(answers)} answers were given to {len(numbers)} requests")
        reply(numbers, answers)
        succeeded = True
    finally:
        if not succeeded:
            await fail(numbers)


def settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    """Give `future` the answer, or the error that prevented it."""
    if future.done():
        return  # whoever asked has given up
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _until_deadline(lanes: Iterable[Lane[Any]]) -> float | None:
    deadlines = [lane.batcher.deadline for lane in lanes if lane.batcher.deadline is not None]
    return min(deadlines) - time.monotonic() if deadlines else None
