"""The inference side of the request channels: their theory of operation is in `request_channel`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray

from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.core.request_channels import Take, TakeOrder
from rlinf_async.core.types import RequestKey
from rlinf_async.loops.requests import NEXT_BATCH, Pending, answering
from rlinf_async.ray_runtime.handles import Handle, RequestChannels, own_channel, peer_of
from rlinf_async.ray_runtime.processes.flat_requests import opened
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.payloads import seal
from rlinf_async.wire.peers import Peer, Peers


class RequestServer:
    """The inference side of the request channels, for one rank; `core.request_channels` has the rules.

    Each take has one answer, and the rank waits for all of them: a late answer may be a batch.
    """

    def __init__(
        self, channels: RequestChannels, *, rank: int, generation: int = 0, deadline_s: float = math.inf
    ) -> None:
        """`generation` is the number of deaths of this rank before this process; `deadline_s` the longest
        time without a request, in seconds."""
        home = own_channel(channels, this_node())
        self._ways = [
            _Way(channel, rank=rank, generation=generation, is_home=number == home)
            for number, channel in enumerate(channels.values())
        ]
        self._order = TakeOrder(channels=len(channels), home=home, first=rank)
        self._askers = Peers("the process that asked")
        self._rank, self._generation, self._deadline_s = rank, generation, deadline_s
        self._unanswered: dict[int, asyncio.Task[list[Pending] | None]] = {}
        """Takes that have not been answered, by their channels."""
        self._taken_from = self._ways[home]
        """The channel that the last batch came from."""

    async def take(self) -> list[Pending] | None:
        give_up = _now() + self._deadline_s
        while _now() < give_up:
            take = self._order.next(self._unanswered)
            channel, batch = await self._first_answer(take)
            is_home = channel == self._order.home
            if batch is None and not is_home:
                self._order.leave(channel)
            elif channel == take.channel:
                self._order.brought(take, batch=bool(batch))
            if batch or (batch is None and is_home):
                self._taken_from = self._ways[channel]
                return batch
        raise DeadlineError(f"waited {self._deadline_s:g} s for a request to inference rank {self._rank}")

    async def _first_answer(self, take: Take) -> tuple[int, list[Pending] | None]:
        """Make a take; return the channel that has answered first, and the batch that it has given.

        Another channel than that of `take` answers if an earlier take was late.
        """
        home, unanswered = self._order.home, self._unanswered
        if take.channel == home and not unanswered:
            return home, await self._ways[home].take(take)
        if take.channel not in unanswered:
            unanswered[take.channel] = asyncio.create_task(self._ways[take.channel].take(take))
        # The rank's own channel ends the wait; another channel may be slow, or behind a link that is cut.
        timeout = None if take.channel == home else self._order.pass_s
        try:
            await asyncio.wait(unanswered.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for task in unanswered.values():
                task.cancel()
            raise
        for channel, task in unanswered.items():
            if task.done():
                del unanswered[channel]
                return channel, task.result()
        return take.channel, []

    @asynccontextmanager
    async def answering(self, batch: Sequence[Pending]) -> AsyncIterator[list[Any]]:
        # The connection may be made anew before the batch is answered, and then has other requests.
        channel, requests = self._taken_from.channel, {one.key: one.request for one in batch}
        began = _now()

        def reply(keys: Sequence[RequestKey], answers: Sequence[Any]) -> None:
            for key, answer in zip(keys, answers, strict=True):
                self._askers.at(requests[key].asker).cast(requests[key].number, seal(answer), None)

        def fail(keys: Sequence[RequestKey]) -> None:
            why = f"inference rank {self._rank} failed"
            channel.cast("failed", self._rank, self._generation, keys, why)

        async with answering(batch, reply=reply, fail=fail) as answers:
            yield answers
        self._order.passed(_now() - began)


class _Way:
    """The connection of an inference rank to one request channel."""

    def __init__(self, process: Handle, *, rank: int, generation: int, is_home: bool) -> None:
        self._process, self._rank, self._generation, self._is_home = process, rank, generation, is_home
        self._node = this_node()
        self.channel = self._made()

    async def take(self, take: Take) -> list[Pending] | None:
        """Return the batch that the channel gives; [] if it has none, or cannot be reached now, and None if
        it is closed or has died.

        Raises:
            PeerError: the rank's own channel is lost.
        """
        if self._is_home:
            return await self._ask(take)
        try:
            if self.channel.lost is None:
                with suppress(PeerError):
                    return await self._ask(take)
            # A batch may be lost on its way: its requests are sent again.
            await self._process.way_lost.remote(self._rank, self._generation)
            self.channel = self._made()
        except ray.exceptions.ActorUnavailableError:
            pass  # Ray will soon know if the channel lives
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError):
            return None
        return []

    async def _ask(self, take: Take) -> list[Pending] | None:
        own = self._rank, self._node, self._generation
        batch = await self.channel.call("take", *own, take.wait_s, take.waited_s, under=NEXT_BATCH)
        return None if batch is None else opened(batch)

    def _made(self) -> Peer:
        return peer_of(self._process, f"the request channel{'' if self._is_home else ' of another node'}")


def _now() -> float:
    return asyncio.get_running_loop().time()
