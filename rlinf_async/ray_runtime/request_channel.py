"""The channel of action requests one way and of answers the other, and the sides that talk to it.

It is a process with a broker inside, to which env workers, inference ranks and learner ranks that have pieces
scored connect directly; Ray's calls only tell them where. Payloads pass the channel sealed; see `wire`. A
shard has one request under way, so no more is ever queued in a connection than there are shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.answering import answering
from rlinf_async.loops.request_broker import Pending
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.connection import Address, Caller, Connection, Listener, this_node
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.inspection import Inspectable
from rlinf_async.ray_runtime.listening import Listening
from rlinf_async.ray_runtime.shown_memory import ShownMemory
from rlinf_async.ray_runtime.wire import opened, seal, sealed

NEXT_BATCH = "next batch"
"""The key under which an inference rank waits; numbers are those of requests."""


class RequestChannel(Inspectable):
    """The process in which env shards meet inference ranks."""

    def __init__(self, settings: RunSettings) -> None:
        self._broker = settings.request_broker()
        self._listener = Listener(Listening.REQUESTS, self._receive)
        self._takes: set[asyncio.Task[None]] = set()

    async def address(self, node: str) -> Address:
        """The address to connect to, for a process of `node`."""
        return self._listener.address(node)

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

    def _receive(self, connection: Connection, kind: str, *message: Any) -> None:
        broker = self._broker
        match kind, message:
            case "ask", (request,):
                asker = partial(connection.send, request.number)
                try:
                    broker.ask(request, asker)
                except ValueError as error:
                    asker(None, error)
            case "take", (rank, node, generation):
                task = asyncio.create_task(self._give_batch(connection, rank, node, generation))
                self._takes.add(task)
                task.add_done_callback(self._takes.discard)
            case "answer", (rank, generation, numbers, answers, why):
                if broker.serves(rank, generation):
                    broker.reply(numbers, answers) if why is None else broker.fail(numbers, why)
            case "give up", (shard, number):
                broker.give_up(shard, number)
            case "begin", (shard, generation):
                broker.begin(shard, generation)
            case "end", (shard, generation):
                broker.end(shard, generation)
            case _:
                raise KeyError(kind)

    async def _give_batch(self, connection: Connection, rank: int, node: str, generation: int) -> None:
        """Send the next batch to a rank; None when closed and drained, or to an earlier generation."""
        try:
            batch = await self._broker.take(rank, node, generation)
        except Exception as error:  # noqa: BLE001 it is raised in the rank, which waits for it
            return connection.send(NEXT_BATCH, None, error)
        if batch and any(pending.request.mode != "score" for pending in batch):
            oldest = min(pending.arrived for pending in batch)
            size = sum(pending.size for pending in batch)
            self.spans.add("queued", oldest, requests=len(batch), size=size)
        connection.send(NEXT_BATCH, batch, None)


class RequestClient:
    """The asking side of a request channel, for all that one process asks."""

    def __init__(self, channel: Handle, *, generation: int = 0) -> None:
        """`generation` is the life of this process."""
        self._caller = _caller(channel)
        self._generation, self._node = generation, this_node()
        self._memory = ShownMemory(Listening.LARGE_REQUESTS)

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        connection = await self._caller.connection()
        connection.send("begin", shard, self._generation)
        try:
            yield
        finally:
            connection.send("end", shard, self._generation)

    async def act(self, request: ActionRequest) -> Any:
        with sealed(request.payload, self._memory) as payload:
            own = replace(request, payload=payload, node=self._node, generation=self._generation)
            connection = await self._caller.connection()
            try:
                return opened(await self._caller.call(request.number, "ask", own))
            except asyncio.CancelledError:
                connection.send("give up", request.shard, request.number)
                raise


class RequestServer:
    """The inference side of a request channel, for one rank."""

    def __init__(self, channel: Handle, *, rank: int, generation: int = 0) -> None:
        """`generation` is the life of this process."""
        self._caller = _caller(channel)
        self._rank, self._generation = rank, generation

    async def take(self) -> list[Pending] | None:
        batch: list[Pending] | None = await self._caller.call(
            NEXT_BATCH, "take", self._rank, this_node(), self._generation
        )
        return batch

    @asynccontextmanager
    async def answering(self, batch: Sequence[Pending]) -> AsyncIterator[list[Any]]:
        send = partial((await self._caller.connection()).send, "answer", self._rank, self._generation)
        why = f"inference rank {self._rank} failed"
        async with answering(
            batch,
            reply=lambda numbers, answers: send(numbers, [seal(answer) for answer in answers], None),
            fail=lambda numbers: send(numbers, (), why),
        ) as answers:
            yield answers


def _caller(channel: Handle) -> Caller:
    return Caller("the request channel", partial(channel.address.remote, this_node()))
