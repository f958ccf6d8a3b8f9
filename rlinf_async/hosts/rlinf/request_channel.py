"""The RLinf channel of action requests one way and of answers the other, and the sides that talk to it.

It is a channel worker of RLinf with a broker inside, reached through Ray's own calls: those can be awaited
with a deadline, fail loudly when a process dies, and have no per-pair queue behind which others wait. A
trip is two calls, each of which waits for what comes next: the env worker's `exchange` brings requests and
returns with answers, the inference rank's `answer_and_take` brings answers and returns with the next
batch. Payloads pass the channel sealed; see `wire`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import ray

from rlinf_async.core.types import ActionRequest
from rlinf_async.hosts.rlinf.channel_process import ChannelProcess
from rlinf_async.hosts.rlinf.memory import MemoryPool
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.wire import fetch, seal, sealed
from rlinf_async.loops.mailbox import Mailbox
from rlinf_async.loops.request_broker import Pending, RequestBroker, answering, settle

CALLS = 2
"""Calls of an env worker under way at most: one that waits for answers, and one that brings requests."""


class RequestChannelWorker(ChannelProcess):
    """The process in which env shards meet inference ranks.

    Records travel as plain lists, which Ray passes on without pickling.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        rollout, deadline_s = settings.asynchrony.rollout, settings.asynchrony.deadline_s
        if rollout.enabled:
            self._broker = RequestBroker.dynamic(
                max_size=settings.max_batch_size,
                max_wait=rollout.max_wait,
                deadline_s=deadline_s,
            )
        else:
            in_step = settings.asynchrony.deterministic
            self._broker = RequestBroker.barrier(settings.plan, deadline_s=deadline_s, in_step=in_step)
        self._mailboxes: dict[str, Mailbox] = {}

    async def exchange(
        self, client: str, node: str, records: list[list[Any]], *payloads: Any
    ) -> list[list[Any]]:
        """Queue requests, and wait for answers to any that this client has sent.

        An earlier call of the client that still waits returns with nothing: this one waits in its place.

        Args:
            client: A name that no other client has.
            node: Where the client runs, as Ray names it.
            records: `[number, shard, size, mode]` of each request; the number is the client's own.
            payloads: One per request.

        Returns:
            `[number, payload, error]` of each answer; one of the last two is None.
        """
        mailbox = self._mailboxes.setdefault(client, Mailbox())
        for (number, shard, size, mode), payload in zip(records, payloads, strict=True):
            request = ActionRequest(shard=shard, size=size, mode=mode, payload=payload, node=node)
            self._broker.ask(request, mailbox.expect(number))
        answers = await mailbox.collect()
        # A call that was overtaken may come here late, when the name has a new mailbox.
        if mailbox.idle and self._mailboxes.get(client) is mailbox:
            del self._mailboxes[client]
        return [list(answer) for answer in answers]

    async def take_requests(self, rank: int, node: str) -> list[list[Any]] | None:
        """The next batch as `[number, shard, size, mode, payload]`; None when closed and drained."""
        batch = await self._broker.take(rank, node)
        if batch is None:
            return None
        oldest = min(pending.arrived for pending in batch)
        self.spans.add("queued", oldest, requests=len(batch), size=sum(pending.size for pending in batch))
        requests = [(pending.number, pending.request) for pending in batch]
        return [[number, asked.shard, asked.size, asked.mode, asked.payload] for number, asked in requests]

    async def answer_and_take(
        self, rank: int, node: str, numbers: Sequence[int], *answers: Any
    ) -> list[list[Any]] | None:
        self._broker.reply(numbers, answers)
        return await self.take_requests(rank, node)

    async def fail_requests(self, numbers: Sequence[int], message: str) -> None:
        self._broker.fail(numbers, message)

    async def begin_rollout(self, shard: int) -> None:
        self._broker.begin(shard)

    async def end_rollout(self, shard: int) -> None:
        self._broker.end(shard)

    async def close_requests(self) -> None:
        self._broker.close()

    async def pop_batches(self) -> dict[str, Any]:
        """Spreads of batch sizes (samples) and waits (seconds) since the last call."""
        size, wait = self._broker.batch_size, self._broker.batch_wait
        self._broker.batch_size, self._broker.batch_wait = type(size)(), type(wait)()
        return {"size": size, "wait": wait}


class RequestClient:
    """The env side of a request channel, for all shards of one worker.

    Requests that are ready in the same turn of the event loop travel in one call, and so do those that
    become ready while `CALLS` are under way. As long as a request is unanswered, a call waits for it.
    """

    def __init__(self, channel: Any, *, counts_rollouts: bool, memory: MemoryPool | None = None) -> None:
        """`memory` is what every inference rank can read."""
        self._channel = channel
        self._counts_rollouts = counts_rollouts
        self._memory = memory
        self._name, self._node = uuid.uuid4().hex, this_node()
        self._numbers = itertools.count()
        self._unsent: list[tuple[list[Any], Any]] = []
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._calls: set[asyncio.Task[list[list[Any]]]] = set()

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        # Only the barrier batcher of level 2 off counts who is in flight.
        if self._counts_rollouts:
            await self._channel.begin_rollout.remote(shard)
        try:
            yield
        finally:
            if self._counts_rollouts:
                await self._channel.end_rollout.remote(shard)

    async def act(self, request: ActionRequest) -> Any:
        number = next(self._numbers)
        answer = self._unanswered[number] = asyncio.get_running_loop().create_future()
        record = [number, request.shard, request.size, request.mode]
        with sealed(request.payload, self._memory) as payload:
            self._unsent.append((record, payload))
            if len(self._unsent) == 1:
                self._call()
            answered = await answer
        (result,) = await fetch([answered])
        return result

    def _call(self) -> None:
        """Start a call if there is something to bring or nobody waits, and if not enough are under way."""
        wanted = self._unsent or (self._unanswered and not self._calls)
        if wanted and len(self._calls) < CALLS:
            call = asyncio.create_task(self._exchange())
            self._calls.add(call)
            call.add_done_callback(self._receive)

    async def _exchange(self) -> list[list[Any]]:
        # A task starts in the next turn of the loop: the requests of this turn are all there.
        sent, self._unsent = self._unsent, []
        if not sent and len(self._calls) > 1:
            return []  # the other call has brought them
        records = [record for record, _ in sent]
        payloads = (payload for _, payload in sent)
        return await self._channel.exchange.remote(self._name, self._node, records, *payloads)

    def _receive(self, call: asyncio.Task[list[list[Any]]]) -> None:
        self._calls.discard(call)
        if call.cancelled():
            return
        if (error := call.exception()) is None:
            answers = call.result()
        else:
            answers = [[number, None, error] for number in self._unanswered]
        for number, payload, failure in answers:
            if (answer := self._unanswered.pop(number, None)) is not None:
                settle(answer, payload, failure)
        self._call()


class RequestServer:
    """The inference side of a request channel, for one rank."""

    def __init__(self, channel: Any, *, rank: int) -> None:
        self._channel = channel
        self._rank, self._node = rank, this_node()
        self._next: Any = None

    async def take(self) -> list[Pending] | None:
        call, self._next = self._next, None
        batch = await (call or self._channel.take_requests.remote(self._rank, self._node))
        return None if batch is None else [_pending(*record) for record in batch]

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        return answering(batch, reply=self._reply, fail=self._fail)

    def _reply(self, numbers: Sequence[int], answers: Sequence[Any]) -> None:
        sealed = [seal(answer) for answer in answers]
        # The answers leave now; the batch that the call returns with is waited for in `take`.
        self._next = self._channel.answer_and_take.remote(self._rank, self._node, numbers, *sealed)

    async def _fail(self, numbers: Sequence[int]) -> None:
        await self._channel.fail_requests.remote(numbers, f"inference rank {self._rank} failed")


def this_node() -> str:
    """The node that this process runs on, as Ray names it; "" outside Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def _pending(number: int, shard: int, size: int, mode: Any, payload: Any) -> Pending:
    request = ActionRequest(shard=shard, size=size, mode=mode, payload=payload)
    return Pending(number=number, request=request)
