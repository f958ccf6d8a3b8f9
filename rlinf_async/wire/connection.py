"""Direct connections between processes of a run, without Ray: unix sockets within a node, TCP between nodes.

Both ends first prove to each other that they know the listener's token (`wire.handshake`); until then nothing
else is read or sent. Then both send frames: the length of a message, and the message, pickled. All frames of
one turn of the event loop are written together. Each end is told at once when the other process dies.
"""

from __future__ import annotations

import asyncio
import errno
import pickle
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from rlinf_async.core.failures import PeerError, in_words
from rlinf_async.loops.request_broker import settle
from rlinf_async.wire.handshake import Handshake, NotKnown
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.nodes import has_other_nodes, node_address, on_lost_node, this_node
from rlinf_async.wire.strangers import STRANGERS, Silent, stranger_by_account

LENGTH_FORMAT = struct.Struct("!Q")
LONGEST_MESSAGE_BYTES = 2**36
"""Longer than any message of a run: a greater length is that of a broken frame."""
TOKEN_BYTES = 32
TOKEN_TIMEOUT_S = 60.0
"""A connecting process must prove within this time that it knows the token. Its event loop may be busy at
first."""
ACCEPTED_AT_ONCE = 16
"""Connections that a listener accepts in one turn of its event loop, before it does other work."""
OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ROOM_WAIT_S = 0.1
"""The pause of a listener without a free descriptor before it accepts again, and of a connecting process
before its first new attempt; each further attempt waits twice as long."""
CONNECT_TRIES = 6
LOOK_S = 5.0
"""The interval between two checks of Ray's nodes during a wait for an answer."""
MAX_WAITING = 1024
"""The backlog of a listener: processes that may connect while its event loop is busy. Beyond the backlog of a
unix socket, asyncio reports a connection that does not exist."""

Address = tuple[str | tuple[str, int], bytes]
"""The name of an abstract unix socket, or host and port; and the token of the listener there."""
Receive = Callable[..., None]
"""Called with a connection and the parts of a message that it has received."""


class Connection(asyncio.Protocol):
    """One end of a connection."""

    _transport: Any = None
    _aborted = False

    def __init__(
        self,
        token: bytes,
        receive: Receive,
        *,
        on_loss: Callable[[Exception | None], None] | None = None,
        on_known: Callable[[Connection, str | None], None] = lambda connection, refusal: None,
    ) -> None:
        """
        Args:
            on_loss: called when the connection ends after its handshake. Given by the connecting end alone:
                an end without it is the listening one.
            on_known: called once with None when the handshake succeeds or the peer leaves during it, and with
                a text when the peer is refused.
        """
        self._token, self._receive, self._on_loss, self._on_known = token, receive, on_loss, on_known
        self._begin_handshake()
        self._unsent: list[bytes] = []

    def send(self, *message: object) -> None:
        """Send a message after the handshake; a message to a dead peer is dropped.

        Raises:
            ValueError: the message is longer than a peer accepts.
        """
        frame = pickle.dumps(message, protocol=5)
        if len(frame) > LONGEST_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(frame)} bytes is longer than {LONGEST_MESSAGE_BYTES}")
        if not self._unsent:
            # One flush per turn of the loop: one system call writes all messages of that turn.
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += (LENGTH_FORMAT.pack(len(frame)), frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._aborted:
            self._transport.abort()
        elif self._on_loss is None:
            self._transport.write(self._handshake.begin())
            # A process that connects and sends nothing would hold the socket for ever.
            asyncio.get_running_loop().call_later(TOKEN_TIMEOUT_S, self._refuse_silent)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        # The proof must come first: unpickling a message, below, runs code that its sender has chosen.
        while not self._handshake.done and len(self._buffer) >= self._handshake.awaited:
            try:
                self._transport.write(self._handshake.hear(bytes(self._take(self._handshake.awaited))))
            except NotKnown:
                self._refuse("has not shown that it knows the token")
                return
            if self._handshake.done:
                self._on_known(self, None)
                self._flush()
        while self._handshake.done and len(self._buffer) >= LENGTH_FORMAT.size:
            (length,) = LENGTH_FORMAT.unpack_from(self._buffer)
            if length > LONGEST_MESSAGE_BYTES:
                # This ends the connection: asyncio closes a transport whose protocol raises.
                raise ConnectionError(f"a frame of {length} bytes is longer than {LONGEST_MESSAGE_BYTES}")
            if len(self._buffer) < LENGTH_FORMAT.size + length:
                return
            self._receive(self, *pickle.loads(self._take(LENGTH_FORMAT.size + length)[LENGTH_FORMAT.size :]))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._handshake.done:
            self._on_known(self, None)
        elif self._on_loss is not None:
            self._on_loss(error)

    async def connect(self, create: Callable[..., Awaitable[object]]) -> bool:
        """Connect by `create`, given a factory of this protocol; return True after the handshake.

        False means that the peer has closed before the handshake ended. Nothing was read or sent, unsent
        messages are kept, and `connect` may be called again.
        """
        self._begin_handshake()
        known = asyncio.get_running_loop().create_future()
        self._on_known = lambda *_: settle(known, self._handshake.done, None)
        await create(partial(_itself, self))
        return bool(await known)

    def abort(self) -> None:
        """End the connection at once."""
        # A listener that accepts many at once may end one before asyncio has made its transport.
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def _begin_handshake(self) -> None:
        self._handshake = Handshake(self._token, "listens" if self._on_loss is None else "connects")
        self._buffer = bytearray()

    def _refuse_silent(self) -> None:
        if not self._handshake.done:
            self._refuse(f"has said nothing for {TOKEN_TIMEOUT_S:g} s")

    def _refuse(self, why: str) -> None:
        self._on_known(self, why)
        self._transport.abort()

    def _take(self, size: int) -> memoryview:
        # The slice copies: a bytearray with a view on it cannot be shortened.
        head = memoryview(self._buffer[:size])
        del self._buffer[:size]
        return head

    def _flush(self) -> None:
        if not self._handshake.done:
            return  # the end of the handshake flushes
        frames, self._unsent = self._unsent, []
        if frames and not self._transport.is_closing():
            self._transport.writelines(frames)


# -- listening --


class Listener:
    """Accepts connections of the run's other processes; the first call of `address` starts to listen."""

    def __init__(self, listening: Listening, receive: Receive) -> None:
        self._listening, self._token = listening, secrets.token_bytes(TOKEN_BYTES)
        self._receive = receive
        self._sockets: dict[bool, socket.socket] = {}
        self._silent = Silent()
        # The event loop holds tasks by weak references only.
        self._beginning: set[asyncio.Task[Any]] = set()

    def address(self, node: str | None) -> Address:
        """The address for a process of `node`; None for processes of any node.

        Raises:
            ValueError: `node` is another node, and this listener serves its own node alone.
        """
        near = node == this_node()
        if not near and not self._listening.other_nodes:
            raise ValueError(f"{self._listening} is for processes of the same node")
        if near not in self._sockets:
            listening = (
                self._near() if near else socket.create_server((node_address(), 0), backlog=MAX_WAITING)
            )
            listening.setblocking(False)
            self._sockets[near] = listening
            self._go_on(listening)
        place = self._sockets[near].getsockname()
        return place.decode() if near else place, self._token

    def address_for_all(self) -> Address:
        """The address for every process of the run."""
        return self.address(None if has_other_nodes() else this_node())

    def _go_on(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept waiting connections, a few at a time.

        asyncio's own servers accept the whole backlog before they handle one connection, so that strangers
        could take all descriptors of the process.
        """
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, place = listening.accept()
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    STRANGERS.note("somebody", self._listening.words, f"no room is left ({error.strerror})")
                    self._silent.end_one()
                    loop.remove_reader(listening)
                    loop.call_later(ROOM_WAIT_S, self._go_on, listening)
                return  # the backlog is empty, or the waiting process has left
            near = listening.family == socket.AF_UNIX
            if near and (stranger := stranger_by_account(connected)) is not None:
                STRANGERS.note(stranger, self._listening.words, "this run is of another")
                connected.close()
                continue
            connected.setblocking(False)
            host = "this machine" if near else str(place[0])
            connection = Connection(self._token, self._receive, on_known=partial(self._know, host))
            if not near:
                self._silent.add(connection, host, connection.abort)
            begin = loop.create_task(loop.connect_accepted_socket(partial(_itself, connection), connected))
            self._beginning.add(begin)
            begin.add_done_callback(self._beginning.discard)

    def _know(self, host: str, connection: Connection, refusal: str | None) -> None:
        self._silent.discard(connection)
        if refusal is not None:
            STRANGERS.note(f"a process on {host}", self._listening.words, refusal)

    def _near(self) -> socket.socket:
        near = socket.socket(socket.AF_UNIX)
        # Of Linux's abstract names: no file, and gone with the process.
        near.bind(f"\0{self._listening.socket_name}{secrets.token_hex(16)}")
        near.listen(MAX_WAITING)
        return near


class Answers:
    """A listener that passes each question to a function, and sends its result back."""

    def __init__(
        self,
        listening: Listening,
        answer: Callable[..., Awaitable[object]],
        *,
        as_raised: type[Exception] = PeerError,
    ) -> None:
        """Exceptions of type `as_raised` reach the caller unchanged; all others become a PeerError with their
        text."""
        self._answer, self._as_raised = answer, as_raised
        self.listener = Listener(listening, self._receive)
        self._tasks: set[asyncio.Task[None]] = set()

    def _receive(self, connection: Connection, key: int, *question: Any) -> None:
        # Concurrently: an answer may wait, as `admit` does at the gate, and must not delay later questions.
        task = asyncio.create_task(self._reply(connection, key, *question))
        # The event loop holds tasks by weak references only: a task may be collected before it ends.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, connection: Connection, key: int, *question: Any) -> None:
        try:
            # Inside this block: `send` raises for an answer that is too long, and the caller gets that error.
            connection.send(key, await self._answer(*question), None)
        except Exception as error:  # noqa: BLE001 the caller waits for an answer, and gets the error
            as_raised = isinstance(error, self._as_raised)
            connection.send(key, None, error if as_raised else PeerError(in_words(error)))


# -- connecting --


class Caller:
    """The connecting side; it connects at the first call, and its calls may wait for results."""

    def __init__(self, peer: str, where: Callable[[], Awaitable[Address]]) -> None:
        """`peer` names the other process in messages; `where` returns its address."""
        self._peer, self._where = peer, where
        self.near = False
        """True once connected to a process of the same node."""
        self._waits: dict[object, asyncio.Future[Any]] = {}
        self._keys = count()
        self._end_error: PeerError | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @property
    def has_lost(self) -> bool:
        """True once the connection has failed or ended; a `Caller` never connects again."""
        made = self._connecting
        failed = made is not None and made.done() and (made.cancelled() or made.exception() is not None)
        return failed or self._end_error is not None

    async def connection(self) -> Connection:
        """Return the connection; the first call makes it.

        Raises:
            PeerError: no process listens at the address, or this process cannot reach it.
        """
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        # Shielded: the first caller may be cancelled, while others wait for the same connection.
        return await asyncio.shield(self._connecting)

    async def ask(self, *question: object) -> Any:
        """Call a peer that serves `Answers`, with a fresh key."""
        key = next(self._keys)
        return await self.call(key, key, *question)

    async def call(self, key: object, *message: object) -> Any:
        """Send a message, and wait for the result with the same `key`.

        Raises:
            PeerError: the connection has ended.
            Exception: the error that the peer has sent instead of a result.
        """
        connection = await self.connection()
        # After the await, and without an await before the wait is registered: the end of the connection fails
        # all registered waits, and a wait that is registered later would never end.
        if self._end_error is not None:
            raise self._end_error
        result = self._waits[key] = asyncio.get_running_loop().create_future()
        try:
            connection.send(*message)
            return await result
        finally:
            del self._waits[key]

    async def _connect(self) -> Connection:
        place, token = await self._where()
        connection = Connection(token, self.receive, on_loss=self._fail_waits)
        await _connect(connection, place, self._peer)
        self.near = isinstance(place, str)
        return connection

    def receive(self, _: Connection, key: object, result: object, error: Exception | None) -> None:
        """Pass a result to the call that waits for it; drop it if none does any more."""
        if (waiting := self._waits.get(key)) is not None:
            settle(waiting, result, error)

    def _fail_waits(self, error: Exception | None) -> None:
        self._end_error = PeerError(
            f"{self._peer} has ended the connection" + (f": {error}" if error else "")
        )
        # `settle` only schedules the waiting tasks: none removes its entry during this loop.
        for waiting in self._waits.values():
            settle(waiting, None, self._end_error)


class Callers:
    """Callers of processes at known addresses, with one connection per address."""

    def __init__(self, peer: str) -> None:
        """`peer` names such a process in messages."""
        self._peer = peer
        self.by_address: dict[Address, Caller] = {}

    async def ask(self, address: Address, *question: object, timeout_s: float | None) -> Any:
        """Send a question, and wait for its answer.

        A cut network link reports no end of a connection. The peer counts as lost when Ray has lost its node,
        and not earlier: until then the link may come back, and TCP delivers what was sent.

        Raises:
            PeerError: no process listens at the address, it has died, or its node is lost.
            TimeoutError: there was no answer within `timeout_s`; the process may hang, or a forked process
                may keep the connection of a dead one open.
        """
        # A repeated question connects anew: a link that was reset may work again.
        if address not in self.by_address or self.by_address[address].has_lost:
            self.by_address[address] = Caller(self._peer, partial(_known, address))
        answer = asyncio.create_task(self.by_address[address].ask(*question))
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait([answer], timeout=LOOK_S))[0]:
                    # In a thread: the call to Ray's store blocks.
                    if await asyncio.to_thread(on_lost_node, address[0]):
                        raise PeerError(f"{self._peer} was on a node that is lost")
                return await answer
        finally:
            answer.cancel()


class Senders:
    """Sends to processes at known addresses, with one connection per address, without waiting for answers."""

    def __init__(self, peer: str) -> None:
        """`peer` names such a process in messages."""
        self._peer = peer
        self.by_address: dict[Address, Connection] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    def to(self, address: Address) -> Connection:
        """The connection to an address. Messages to an unreachable process are dropped."""
        if address not in self.by_address:
            # The `Connection` exists before its socket, and keeps messages that are sent meanwhile.
            forget = partial(self._forget, address)
            connection = self.by_address[address] = Connection(address[1], _refuse_answer, on_loss=forget)
            task = asyncio.create_task(self._reach(connection, address))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return self.by_address[address]

    async def _reach(self, connection: Connection, address: Address) -> None:
        try:
            await _connect(connection, address[0], self._peer)
        except PeerError as error:
            self._forget(address, error)

    def _forget(self, address: Address, _: Exception | None) -> None:
        # The next message connects anew: the link may work again.
        self.by_address.pop(address, None)


async def _connect(connection: Connection, place: str | tuple[str, int], peer: str) -> None:
    near, loop = isinstance(place, str), asyncio.get_running_loop()
    create: Any = loop.create_unix_connection if near else loop.create_connection
    for number in range(CONNECT_TRIES):
        if number:
            # A listener without a free descriptor ends connections whose handshake is not done.
            await asyncio.sleep(ROOM_WAIT_S * 2 ** (number - 1))
        sock = socket.socket(socket.AF_UNIX if near else socket.AF_INET)
        sock.setblocking(False)
        try:
            # A call of its own, so that only errors of connecting become this PeerError.
            await loop.sock_connect(sock, place)
        except OSError as error:
            sock.close()
            raise PeerError(f"{peer} cannot be reached at {place!r}: {error.strerror}") from error
        if await connection.connect(partial(create, sock=sock)):
            return
    raise PeerError(f"{peer} has ended the connection {CONNECT_TRIES} times before anything was said")


def _refuse_answer(*message: object) -> None:
    raise ConnectionError("somebody was told something, and has answered")


async def _known(address: Address) -> Address:
    return address


def _itself(connection: Connection) -> Connection:
    return connection
