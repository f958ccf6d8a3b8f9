"""The channel of action requests one way and of answers the other, and the sides that talk to it.

It is a process with a broker inside, reached through Ray's own calls: those can be awaited with a deadline,
fail loudly when a process dies, and have no per-pair queue behind which others wait. Payloads pass the
channel sealed; see `wire`.

Theory of operation. A trip of a request is two calls, each of which waits for what comes next: the env
worker's `exchange` brings requests and returns with answers, the inference rank's `answer_and_take` brings
answers and returns with the next batch. In `RequestClient` three things may happen in any order: a shard asks
(`act`), a call leaves (`_exchange`), a call returns (`_receive`). One invariant holds them together: while a
request is unsent or unanswered, a call is under way or about to leave. `_call` restores it, and is called
wherever it may have been broken: after a first unsent request, and after a call has returned.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import ray

from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.answering import answering, settle
from rlinf_async.loops.mailbox import Mailbox
from rlinf_async.loops.request_broker import Pending
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.inspection import Inspectable
from rlinf_async.ray_runtime.memory import MemoryPool
from rlinf_async.ray_runtime.wire import fetch, seal, sealed

MAX_CALLS = 2
"""Most calls of an env worker under way: one that waits for answers, and one that brings requests."""


class RequestChannel(Inspectable):
    """The process in which env shards meet inference ranks.

    Records travel as plain lists, which Ray passes on without pickling.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._broker = settings.request_broker()
        self._mailboxes: dict[str, Mailbox] = {}

    async def exchange(
        self, client: str, node: str, generation: int, records: list[list[Any]], *payloads: object
    ) -> list[list[Any]]:
        """Queue requests, and wait for answers to any that this client has sent.

        An earlier call of the client that still waits returns with nothing: this one waits in its place.

        Args:
            client: A name that no other client has.
            node: Where the client runs, as Ray names it.
            generation: The life of its process; see `core.generations`.
            records: `[number, shard, size, mode]` of each request.
            payloads: One per request.

        Returns:
            `[number, payload, error]` of each answer; one of the last two is None.
        """
        mailbox = self._mailboxes.setdefault(client, Mailbox())
        for (number, shard, size, mode), payload in zip(records, payloads, strict=True):
            request = ActionRequest(
                shard=shard,
                number=number,
                size=size,
                mode=mode,
                payload=payload,
                node=node,
                generation=generation,
            )
            # `expect` comes first: `ask` may answer at once.
            self._broker.ask(request, mailbox.expect(number))
        answers = await mailbox.collect()
        # A call that was overtaken may come here late, when the name has a new mailbox.
        if mailbox.idle and self._mailboxes.get(client) is mailbox:
            del self._mailboxes[client]
        return [list(answer) for answer in answers]

    async def take_requests(self, rank: int, node: str, generation: int) -> list[list[Any]] | None:
        """`[ours, shard, number, size, mode, payload]` of each request of the next batch.

        `ours` is the number to answer to, `number` the asker's. None when closed and drained,
        and for a generation that is no more.
        """
        batch = await self._broker.take(rank, node, generation)
        if batch is None:
            return None
        if any(pending.request.mode != "score" for pending in batch):
            oldest = min(pending.arrived for pending in batch)
            size = sum(pending.size for pending in batch)
            self.spans.add("queued", oldest, requests=len(batch), size=size)
        requests = [(pending.number, pending.request) for pending in batch]
        return [[number, one.shard, one.number, one.size, one.mode, one.payload] for number, one in requests]

    async def answer_and_take(
        self, rank: int, node: str, generation: int, numbers: Sequence[int], *answers: object
    ) -> list[list[Any]] | None:
        if self._broker.serves(rank, generation):
            self._broker.reply(numbers, answers)
        return await self.take_requests(rank, node, generation)

    async def fail_requests(self, rank: int, generation: int, numbers: Sequence[int], message: str) -> None:
        if self._broker.serves(rank, generation):
            self._broker.fail(numbers, message)

    async def begin_rollout(self, shard: int, generation: int) -> None:
        self._broker.begin(shard, generation)

    async def end_rollout(self, shard: int, generation: int) -> None:
        self._broker.end(shard, generation)

    async def rank_lost(self, rank: int, generation: int) -> None:
        self._broker.rank_lost(rank, generation)

    async def shards_lost(self, shards: Sequence[int], generation: int) -> None:
        self._broker.shards_lost(frozenset(shards), generation)

    async def close_requests(self) -> None:
        self._broker.close()

    async def pop_batches(self) -> dict[str, Any]:
        """Since the last call: spreads of batch sizes (samples) and waits (seconds), and requests that were
        given back."""
        broker = self._broker
        size, wait, again = broker.batch_size, broker.batch_wait, broker.again
        broker.batch_size, broker.batch_wait, broker.again = type(size)(), type(wait)(), 0
        return {"size": size, "wait": wait, "again": again}


class RequestClient:
    """The env side of a request channel, for all shards of one worker.

    Requests that are ready in the same turn of the event loop travel in one call, and so do those that
    become ready while `MAX_CALLS` are under way. As long as a request is unanswered, a call waits for it.
    """

    def __init__(
        self,
        channel: Handle,
        *,
        counts_rollouts: bool,
        memory: MemoryPool | None = None,
        generation: int = 0,
    ) -> None:
        """`memory` is what every inference rank can read; `generation` the life of this process."""
        self._channel = channel
        self._generation = generation
        self._counts_rollouts = counts_rollouts
        self._memory = memory
        self._name, self._node = uuid.uuid4().hex, this_node()
        self._unsent: list[tuple[list[Any], Any]] = []
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._calls: set[asyncio.Task[list[list[Any]]]] = set()

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        # Only the barrier batcher of level 2 off counts who is in flight.
        if self._counts_rollouts:
            await self._channel.begin_rollout.remote(shard, self._generation)
        try:
            yield
        finally:
            if self._counts_rollouts:
                await self._channel.end_rollout.remote(shard, self._generation)

    async def act(self, request: ActionRequest) -> Any:
        record = [request.number, request.shard, request.size, request.mode]
        with sealed(request.payload, self._memory) as payload:
            while True:
                answered = await self._answer(record, payload)
                # A large answer is lost with the inference rank that holds it: another one answers.
                with suppress(ray.exceptions.ObjectLostError):
                    (result,) = await fetch([answered])
                    return result

    async def _answer(self, record: list[Any], payload: object) -> Any:
        answer = self._unanswered[record[0]] = asyncio.get_running_loop().create_future()
        self._unsent.append((record, payload))
        if len(self._unsent) == 1:
            self._call()
        return await answer

    def _call(self) -> None:
        """Start a call if there are requests to bring or no call waits, and if not enough are under way."""
        due = self._unsent or (self._unanswered and not self._calls)
        if due and len(self._calls) < MAX_CALLS:
            call = asyncio.create_task(self._exchange())
            self._calls.add(call)
            call.add_done_callback(self._receive)

    async def _exchange(self) -> list[list[Any]]:
        # A task starts in the next turn of the loop: the requests of this turn are all there.
        batch, self._unsent = self._unsent, []
        if not batch and len(self._calls) > 1:
            return []  # the other call has brought them
        records = [record for record, _ in batch]
        payloads = (payload for _, payload in batch)
        return await self._channel.exchange.remote(
            self._name, self._node, self._generation, records, *payloads
        )

    def _receive(self, call: asyncio.Task[list[list[Any]]]) -> None:
        self._calls.discard(call)
        cancelled = PeerError("a call to the request channel was cancelled")
        error = cancelled if call.cancelled() else call.exception()
        answers: list[Any] = (
            [(number, None, error) for number in self._unanswered] if error else call.result()
        )
        for number, payload, failure in answers:
            if (answer := self._unanswered.pop(number, None)) is not None:
                settle(answer, payload, failure)
        self._call()


class RequestServer:
    """The inference side of a request channel, for one rank."""

    def __init__(self, channel: Handle, *, rank: int, generation: int = 0) -> None:
        """`generation` is the life of this process."""
        self._channel = channel
        self._who = rank, this_node(), generation
        self._next: Any = None

    async def take(self) -> list[Pending] | None:
        call, self._next = self._next, None
        batch = await (call or self._channel.take_requests.remote(*self._who))
        return None if batch is None else [_pending(*record) for record in batch]

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        return answering(batch, reply=self._reply, fail=self._fail)

    def _reply(self, numbers: Sequence[int], answers: Sequence[Any]) -> None:
        sealed = [seal(answer) for answer in answers]
        # The answers leave now; the batch that the call returns with is waited for in `take`.
        self._next = self._channel.answer_and_take.remote(*self._who, numbers, *sealed)

    async def _fail(self, numbers: Sequence[int]) -> None:
        rank, _, generation = self._who
        await self._channel.fail_requests.remote(rank, generation, numbers, f"inference rank {rank} failed")


def this_node() -> str:
    """The node that this process runs on, as Ray names it; "" outside Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def _pending(own_number: int, shard: int, number: int, size: int, mode: Any, payload: Any) -> Pending:
    request = ActionRequest(shard=shard, number=number, size=size, mode=mode, payload=payload)
    return Pending(number=own_number, request=request)
