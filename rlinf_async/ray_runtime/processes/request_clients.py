"""The clients of the request channel: its theory of operation is in `request_channel`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from rlinf_async.core.types import ActionRequest, RequestKey
from rlinf_async.loops.request_broker import Pending, answering, asked_until_answered
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.request_channel import NEXT_BATCH
from rlinf_async.wire.connection import Address, Caller, Connection, Listener, Senders, this_node
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import Reuse
from rlinf_async.wire.payloads import seal, sealed, unseal
from rlinf_async.wire.shown_memory import ShownMemory


class RequestClient:
    """The asker's side of a request channel, for all requests of one process."""

    def __init__(self, channel: Handle, *, generation: int = 0) -> None:
        """`generation` is the number of deaths of this worker before this process."""
        self._caller = _caller(channel)
        self._answers = Listener(Listening.ANSWERS, self._caller.receive)
        self._generation, self._node = generation, this_node()
        self._memory = ShownMemory(Listening.ASKED_WITH)
        # See `_act`.
        self._memory_again = ShownMemory(Listening.ASKED_WITH, Reuse.NEVER)
        self._keys_to_confirm: list[RequestKey] = []
        """Answered requests that the channel is told of with the next message."""

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        connection = await self._caller.connection()
        connection.send("begin", shard, self._generation)
        try:
            yield
        finally:
            # Before the end of the rollout, as before each request, the channel learns of the answers.
            self._confirm(connection)
            connection.send("end", shard, self._generation)

    async def act(self, request: ActionRequest) -> Any:
        return await asked_until_answered(request, self._act)

    async def _act(self, request: ActionRequest) -> Any:
        connection = await self._caller.connection()
        # A late answer of a lost rank may settle a request that was asked again while another rank reads its
        # payload: that memory must not be reused.
        memory = self._memory_again if request.again else self._memory
        with sealed(request.payload, memory, inline=self._caller.near) as payload:
            own = replace(
                request,
                payload=payload,
                node=self._node,
                generation=self._generation,
                asker=self._address,
            )
            # Before the request: without level 2 a queue refuses a second request of a shard while it holds
            # the first.
            self._confirm(connection)
            try:
                answer = await self._caller.call(request.number, "ask", own)
            except asyncio.CancelledError:
                self._keys_to_confirm.append(request.key)
                self._confirm(connection)  # at once: no rank computes an answer for a cancelled request
                raise
            self._keys_to_confirm.append(request.key)
            return unseal(answer)

    @cached_property
    def _address(self) -> Address:
        return self._answers.address_for_all()

    def _confirm(self, connection: Connection) -> None:
        if self._keys_to_confirm:
            connection.send("settled", self._keys_to_confirm)
            self._keys_to_confirm = []


class RequestServer:
    """The inference side of a request channel, for one rank."""

    def __init__(self, channel: Handle, *, rank: int, generation: int = 0) -> None:
        """`generation` is the number of deaths of this rank before this process."""
        self._caller = _caller(channel)
        self._askers = Senders("the process that asked")
        self._rank, self._generation = rank, generation

    async def take(self) -> list[Pending] | None:
        batch: list[Pending] | None = await self._caller.call(
            NEXT_BATCH, "take", self._rank, this_node(), self._generation
        )
        return batch

    @asynccontextmanager
    async def answering(self, batch: Sequence[Pending]) -> AsyncIterator[list[Any]]:
        connection, requests = await self._caller.connection(), {one.key: one.request for one in batch}

        def reply(keys: Sequence[RequestKey], answers: Sequence[Any]) -> None:
            for key, answer in zip(keys, answers, strict=True):
                self._askers.to(requests[key].asker).send(requests[key].number, seal(answer), None)

        def fail(keys: Sequence[RequestKey]) -> None:
            why = f"inference rank {self._rank} failed"
            connection.send("failed", self._rank, self._generation, keys, why)

        async with answering(batch, reply=reply, fail=fail) as answers:
            yield answers


def _caller(channel: Handle) -> Caller:
    return Caller("the request channel", partial(channel.address.remote, this_node()))
