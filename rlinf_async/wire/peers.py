"""Calls of other processes of the run, and answers to them, by direct connections (`wire.connection`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from rlinf_async.core.failures import PeerError, in_words
from rlinf_async.loops.requests import settle
from rlinf_async.wire.connection import Address, Connection, Receive
from rlinf_async.wire.nodes import on_lost_node

LOOK_S = 5.0
"""The interval between two checks of Ray's nodes during a wait for an answer."""


class Peer:
    """Another process of the run, which this process calls by one connection; the first message makes it.

    When the connection ends, or cannot be made, the peer is lost for ever: all calls fail, those that wait
    and later ones, and messages are dropped.
    """

    def __init__(
        self,
        name: str,
        where: Callable[[], Awaitable[Address]],
        *,
        on_loss: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Args:
            name: the process, in messages of errors.
            where: returns its address.
            on_loss: called when the peer is lost.
        """
        self._name, self._where, self._on_loss = name, where, on_loss
        self.lost: Exception | None = None
        """The error of all calls, once the peer is lost."""
        # The connection object exists before its socket, and keeps messages that are sent meanwhile.
        self._connection = Connection(self.receive, on_loss=self._end)
        self._connecting: asyncio.Task[None] | None = None
        self._waits: dict[object, asyncio.Future[Any]] = {}
        self._keys = count()

    def cast(self, *message: object) -> None:
        """Send a message, and wait for nothing."""
        if self.lost is not None:
            return  # a connection that was never made would keep the message
        self._connection.send(*message)
        if self._connecting is None:
            # A task of its own: the first caller may be cancelled, while others wait for the same connection.
            # It is kept, as the event loop holds tasks by weak references only.
            self._connecting = asyncio.create_task(self._connect())

    async def call(self, *question: object, under: object = None) -> Any:
        """Send a question, and wait for its result.

        Args:
            under: the key of the result, if the question itself contains it; by default a new key is sent
                before the question.

        Raises:
            PeerError: the peer is lost.
            Exception: the error that the peer has sent instead of a result, or that of `where`.
        """
        # Without an await before the wait is registered: the loss of the peer fails all registered waits, and
        # a wait that is registered later would never end.
        if self.lost is not None:
            raise self.lost
        if under is None:
            under = next(self._keys)
            question = (under, *question)
        result = self._waits[under] = asyncio.get_running_loop().create_future()
        try:
            self.cast(*question)
            return await result
        finally:
            del self._waits[under]

    def receive(self, _: Connection, key: object, result: object, error: Exception | None) -> None:
        """Pass a result to the call that waits for it; drop it if none does any more."""
        if (waiting := self._waits.get(key)) is not None:
            settle(waiting, result, error)

    async def _connect(self) -> None:
        try:
            await self._connection.connect(await self._where(), self._name)
        except Exception as error:  # noqa: BLE001 it is raised in all calls
            self._lose(error)

    def _end(self, error: Exception | None) -> None:
        message = f"{self._name} has ended the connection" + (f": {error}" if error else "")
        self._lose(PeerError(message))

    def _lose(self, error: Exception) -> None:
        self.lost = error
        self._on_loss()
        # `settle` only schedules the waiting tasks: none removes its entry during this loop.
        for waiting in self._waits.values():
            settle(waiting, None, error)


class Peers:
    """Processes at known addresses, with one connection per address."""

    def __init__(self, name: str) -> None:
        """`name` is that of each process, in messages of errors."""
        self._name = name
        self.by_address: dict[Address, Peer] = {}

    def at(self, address: Address) -> Peer:
        """The process that listens at `address`."""
        if address not in self.by_address:
            # The next message after a loss connects anew: a link that was reset may work again.
            forget = partial(self.by_address.pop, address, None)
            self.by_address[address] = Peer(self._name, partial(_known, address), on_loss=forget)
        return self.by_address[address]

    async def call(self, address: Address, *question: object, timeout_s: float | None) -> Any:
        """Send a question to the process at `address`, and wait for its answer.

        A cut network link reports no end of a connection. The peer counts as lost when Ray has lost its node,
        and not earlier: until then the link may come back, and TCP delivers the data that was sent.

        Raises:
            PeerError: no process listens at the address, it has died, its node is lost, or there was no
                answer within `timeout_s`: the process may hang, or a forked process may keep the connection
                of a dead one open.
        """
        answer = asyncio.create_task(self.at(address).call(*question))
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait([answer], timeout=LOOK_S))[0]:
                    # In a thread: the call to Ray's store blocks.
                    if await asyncio.to_thread(on_lost_node, address[0]):
                        raise PeerError(f"{self._name} was on a node that is lost")
                return await answer
        except TimeoutError as error:
            raise PeerError(f"{self._name} has not answered within {timeout_s:g} s") from error
        finally:
            answer.cancel()


def replies(answer: Callable[..., Awaitable[object]], *, as_raised: type[Exception] = PeerError) -> Receive:
    """For a listener that passes each question of a peer to `answer`, and sends its result back.

    Exceptions of type `as_raised` reach the caller unchanged; all others become a PeerError with their text.
    """
    # The event loop holds tasks by weak references only: a task may be collected before it ends.
    tasks: set[asyncio.Task[None]] = set()

    def receive(connection: Connection, key: object, *question: object) -> None:
        # Concurrently: an answer may wait, as `admit` does at the gate, and must not delay later questions.
        task = asyncio.create_task(reply(connection, key, *question))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def reply(connection: Connection, key: object, *question: object) -> None:
        try:
            # Inside this block: `send` raises for an answer that is too long, and the caller gets that error.
            connection.send(key, await answer(*question), None)
        except Exception as error:  # noqa: BLE001 the caller waits for an answer, and gets the error
            unchanged = isinstance(error, as_raised)
            connection.send(key, None, error if unchanged else PeerError(in_words(error)))

    return receive


async def _known(address: Address) -> Address:
    return address
