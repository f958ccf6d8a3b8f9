"""The channel of action requests.

Theory of operation. The channel is a process with a broker inside. Its clients (`request_clients`,
`request_server`) connect to it directly; Ray's calls only tell them the address. Askers are env workers, and
learner ranks that have pieces scored; inference ranks take requests in batches. The channel sees the asker,
the size and the node of a request. The payload of a request stays in the asker's memory, where the rank that
has taken the request reads it (`wire`; on the channel's own node a small payload may come along). The answer
goes from the rank straight to the asker. So the channel needs no torch, as the coordinator does not.

    asker -> channel   ask: a request; settled: the answers have come; begin, end: of a rollout
    rank  -> channel   take: wait for a batch, or look for one; failed: the requests of a failed forward pass
    rank  -> asker     the answer
    channel -> asker   an error: the request was late or failed; or its rank is lost, and it is sent again

The asker takes the first answer to a request, or error, and drops later ones. So if an answer is lost with
its rank, another rank answers, and if two answers come, the second is dropped.

A run on several nodes may have several channels (`core.request_channels`). A request is in one of them only,
so that each channel works as if it were the only one. Every channel is told of changes that concern all of
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from rlinf_async.core.types import RequestKey
from rlinf_async.loops.request_broker import request_broker
from rlinf_async.loops.requests import NEXT_BATCH, Pending
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import Spread
from rlinf_async.ray_runtime.processes.flat_requests import Flat, handed_out, restored
from rlinf_async.ray_runtime.processes.reading_pauses import ReadingPauses
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.wire.connection import Address, Connection, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.peers import replies


class RequestChannel(RunProcess):
    """The process between env shards and inference ranks."""

    def __init__(self, settings: RunSettings) -> None:
        self._broker, self._node = request_broker(settings), this_node()
        self._listener = Listener(Listening.REQUESTS, self._receive)
        self._answer_take = replies(self._take, as_raised=Exception)
        self._reading = ReadingPauses()
        self._open_takes = 0
        self._reads_askers = True
        """True if the event loop has read a request since the last take."""
        self._closed = asyncio.Event()

    async def address(self, node: str) -> Address:
        """The address to connect to, for a process of `node`."""
        return self._listener.address(node)

    async def rank_lost(self, rank: int, generation: int) -> None:
        self._broker.rank_lost(rank, generation)

    async def shards_lost(self, shards: Sequence[int], generation: int) -> None:
        self._broker.shards_lost(frozenset(shards), generation)

    async def way_lost(self, rank: int, generation: int) -> None:
        self._broker.way_lost(rank, generation)

    async def stay(self) -> None:
        """Return when the channel is closed; a call that lasts as long tells the driver of its death."""
        await self._closed.wait()

    async def close_requests(self) -> None:
        self._broker.close()
        self._reading.resume()
        self._closed.set()

    async def waited(self) -> Spread:
        """The seconds that requests have waited to be taken, since the run began."""
        return self._broker.waited

    async def pop_batches(self) -> dict[str, Any]:
        """Return spreads of batch sizes (samples) and waits (seconds), and the number of requests that were
        sent again, since the last call.
        """
        broker = self._broker
        size, wait, repeats = broker.batch_size, broker.batch_wait, broker.again
        broker.batch_size, broker.batch_wait, broker.again = type(size)(), type(wait)(), 0
        return {"size": size, "wait": wait, "again": repeats}

    def _receive(self, connection: Connection, kind: str, *message: Any) -> None:
        broker = self._broker
        match kind, message:
            case "ask", (flat, answered):
                self._ask(connection, flat, answered)
            case "settled", (keys,):
                broker.settled(keys)
            case "take", take:
                # Counted at once: a request of this turn must not pause its connection, as the rank may wait
                # for the next one.
                self._open_takes += 1
                if self._reads_askers:
                    # Requests that the event loop reads in this turn join the batch.
                    asyncio.get_running_loop().call_soon(self._serve, connection, *take)
                else:
                    self._serve(connection, *take)
            case "failed", (rank, generation, keys, why):
                # Only failures of a rank that still serves: a late failure of a lost rank must not end a
                # request that another rank answers.
                if broker.serves(rank, generation):
                    broker.fail(keys, why)
            case "begin", (shard, generation):
                broker.begin(shard, generation)
            case "end", (shard, generation):
                broker.end(shard, generation)
            case _:
                raise KeyError(kind)

    def _ask(self, connection: Connection, flat: Flat, answered: Sequence[RequestKey]) -> None:
        # First: without level 2 a queue refuses a second request of a shard while it holds the first.
        self._broker.settled(answered)
        request = restored(flat)
        asker = partial(connection.send, request.number)
        # Processes of one node have one monotonic clock.
        is_near = request.node == self._node
        try:
            self._broker.ask(request, asker, asked=request.asked if is_near else None)
        except ValueError as error:
            # The request is larger than any batch. Raised here, the error would end the connection of all
            # shards of the worker.
            asker(None, error)
        if is_near and self._reading.has(connection):
            return
        self._reads_askers = True
        if is_near:
            self._reading.asked(connection, is_awaited=self._open_takes > 0)

    def _serve(
        self,
        connection: Connection,
        rank: int,
        node: str,
        generation: int,
        wait_s: float,
        waited_s: float,
    ) -> None:
        """Answer a take: now, without a task, if there is a batch, or the rank does not wait for one."""
        self._reading.read()
        self._reads_askers = False
        try:
            batch = self._broker.take_now(rank, node, generation, waited_s=waited_s)
        except Exception as error:  # noqa: BLE001 the event loop would log it, and the rank wait for ever
            self._handed_out(None)
            connection.send_now(NEXT_BATCH, None, error)
            return
        if batch == [] and wait_s > 0:
            self._reading.resume()
            self._answer_take(connection, NEXT_BATCH, rank, node, generation, wait_s, waited_s)
        else:
            connection.send_now(NEXT_BATCH, self._handed_out(batch), None)

    async def _take(
        self, rank: int, node: str, generation: int, wait_s: float, waited_s: float
    ) -> list[tuple[float, Flat]] | None:
        """The batch for a rank that waits; see `RequestBroker.take`."""
        batch = None
        try:
            batch = await self._broker.take(rank, node, generation, wait_s=wait_s, waited_s=waited_s)
        finally:
            handed = self._handed_out(batch)
        return handed

    def _handed_out(self, batch: list[Pending] | None) -> list[tuple[float, Flat]] | None:
        """Note the end of a take; return its batch as it travels."""
        self._open_takes -= 1
        if not self._open_takes:
            self._reading.pause()
        # The first request has the mode of all: requests for scores have a queue of their own.
        if batch and batch[0].request.mode != "score":
            oldest = min(pending.arrived for pending in batch)
            size = sum(pending.size for pending in batch)
            self.spans.add("queued", oldest, requests=len(batch), size=size)
        return None if batch is None else handed_out(batch)
