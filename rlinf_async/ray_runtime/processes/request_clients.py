"""The clients of the request channel: its theory of operation is in `request_channel`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from rlinf_async.core.types import ActionRequest, RequestKey
from rlinf_async.loops.requests import asked_until_answered
from rlinf_async.ray_runtime.handles import RequestChannels, own_channel, peer_of
from rlinf_async.ray_runtime.processes.flat_requests import flattened, packed
from rlinf_async.wire.connection import Address, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import Reuse
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.payloads import sealed, unseal
from rlinf_async.wire.shown_memory import ShownMemory


class RequestClient:
    """The asker's side of the request channel of its node, for all requests of one process."""

    def __init__(self, channels: RequestChannels, *, generation: int = 0) -> None:
        """`generation` is the number of deaths of this worker before this process."""
        self._generation, self._node = generation, this_node()
        own = list(channels.values())[own_channel(channels, self._node)]
        self._channel, self._is_near = peer_of(own, "the request channel"), self._node in channels
        # The ranks answer the channel's requests by their own connections.
        self._answers = Listener(Listening.ANSWERS, self._channel.receive)
        self._memory = ShownMemory(Listening.ASKED_WITH)
        # See `_act`.
        self._memory_again = ShownMemory(Listening.ASKED_WITH, Reuse.NEVER)
        self._keys_to_confirm: list[RequestKey] = []
        """Answered requests; the next message tells the channel of them."""

    @asynccontextmanager
    async def rollout(self, shard: int) -> AsyncIterator[None]:
        self._channel.cast("begin", shard, self._generation)
        try:
            yield
        finally:
            # Before the end of the rollout, as with each request, the channel is told of the answers.
            self._confirm()
            self._channel.cast("end", shard, self._generation)

    async def act(self, request: ActionRequest) -> Any:
        return await asked_until_answered(request, self._act)

    async def _act(self, request: ActionRequest) -> Any:
        # A late answer of a lost rank may settle a request that was sent again while another rank reads its
        # payload: that memory must not be reused.
        memory = self._memory_again if request.again else self._memory
        with sealed(request.payload, memory, inline=self._is_near) as payload:
            flat = flattened(
                request,
                node=self._node,
                generation=self._generation,
                asked=asyncio.get_running_loop().time(),
                body=packed(self._address, payload),
            )
            # With the request, and read before it: without level 2 a queue refuses a second request of a
            # shard while it holds the first.
            answered, self._keys_to_confirm = self._keys_to_confirm, []
            try:
                answer = await self._channel.call("ask", flat, answered, under=request.number)
            except asyncio.CancelledError:
                self._keys_to_confirm.append(request.key)
                self._confirm()  # at once: no rank computes an answer for a cancelled request
                raise
            self._keys_to_confirm.append(request.key)
            return unseal(answer)

    @cached_property
    def _address(self) -> Address:
        return self._answers.address_for_all()

    def _confirm(self) -> None:
        if self._keys_to_confirm:
            self._channel.cast("settled", self._keys_to_confirm)
            self._keys_to_confirm = []
