"""Connections between processes of a run, past Ray: a unix socket where both are on one node, else TCP.

Both ends first show each other that they know the token of the listener (`wire.handshake`); nothing else is
read or sent before. Then both send frames: the length of a message, and the message, pickled. Frames of one
turn of the event loop leave together. Each end learns at once when the other has died.
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

import ray

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.request_broker import settle
from rlinf_async.observe.failures import in_words
from rlinf_async.wire.handshake import Handshake, NotKnown
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.strangers import STRANGERS, Silent, stranger_by_account

LENGTH_FORMAT = struct.Struct("!Q")
LONGEST_MESSAGE_BYTES = 2**36
"""More than any piece; of what is longer, the length itself is wrong."""
TOKEN_BYTES = 32
TOKEN_TIMEOUT_S = 60.0
"""In which whoever connects shows that it knows the token; its event loop may be busy at first."""
ACCEPTED_AT_ONCE = 16
"""Connections that a listener accepts in one turn of its event loop, before it does other work."""
OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ROOM_WAIT_S = 0.1
"""Before a listener that has no descriptor left accepts again. Who was turned away comes again after as long,
and waits twice as long each time."""
CONNECT_TRIES = 6
LOOK_S = 5.0
"""Between two looks at Ray's nodes while somebody waits for an answer."""
MAX_WAITING = 1024
"""Processes that may connect while the event loop of a listener is busy. To one more, asyncio says that it is
connected to a unix socket when it is not."""

Address = tuple[str | tuple[str, int], bytes]
"""The name of an abstract unix socket, or host and port; and the token that is asked for there."""
Receive = Callable[..., None]
"""Takes a connection, and the parts of a message that has come by it."""


class Connection(asyncio.Protocol):
    """One end of a connection."""

    _transport: Any = None

    def __init__(
        self,
        token: bytes,
        receive: Receive,
        *,
        on_loss: Callable[[Exception | None], None] | None = None,
        on_known: Callable[[Connection, str | None], None] = lambda connection, refusal: None,
    ) -> None:
        """The end that gives `on_loss`, to be called at the end of a connection whose ends have known each
        other, has connected; the other listens. `on_known` is told when the other end has shown that it knows
        the token or has gone, or why it was refused."""
        self._token, self._receive, self._on_loss, self._on_known = token, receive, on_loss, on_known
        self._begin_handshake()
        self._unsent: list[bytes] = []

    def send(self, *message: object) -> None:
        """Send a message, once there is a peer; one to a peer that has gone is gone, too.

        Raises:
            ValueError: it is longer than the peer takes.
        """
        frame = pickle.dumps(message, protocol=5)
        if len(frame) > LONGEST_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(frame)} bytes is longer than {LONGEST_MESSAGE_BYTES}")
        if not self._unsent:
            # Once a turn of the loop: all of its messages then leave by one call of the system.
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += (LENGTH_FORMAT.pack(len(frame)), frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._on_loss is None:
            self._transport.write(self._handshake.begin())
            # Somebody who connects and says nothing would hold the socket for ever.
            asyncio.get_running_loop().call_later(TOKEN_TIMEOUT_S, self._refuse_silent)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        # The proof comes first: a message is unpickled below, which runs whatever its sender has packed.
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
                # Raised here, it ends the connection: asyncio closes one whose protocol fails.
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
        """Be connected by `create`, which takes what makes a protocol; True once the other end has shown that
        it knows the token. Where it has gone before that, nothing was read or sent, and this may be tried
        again: what is to be sent waits."""
        self._begin_handshake()
        known = asyncio.get_running_loop().create_future()
        self._on_known = lambda *_: settle(known, self._handshake.done, None)
        await create(partial(_itself, self))
        return bool(await known)

    def abort(self) -> None:
        """End the connection at once."""
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
        # The slice is a copy: a bytearray of which somebody holds a view cannot be shortened.
        head = memoryview(self._buffer[:size])
        del self._buffer[:size]
        return head

    def _flush(self) -> None:
        if not self._handshake.done:
            return  # its end does it
        frames, self._unsent = self._unsent, []
        if frames and not self._transport.is_closing():
            self._transport.writelines(frames)


# -- listening --


class Listener:
    """The place where other processes of the run connect to this one; it listens once somebody asks where."""

    def __init__(self, listening: Listening, receive: Receive) -> None:
        self._listening, self._token = listening, secrets.token_bytes(TOKEN_BYTES)
        self._receive = receive
        self._sockets: dict[bool, socket.socket] = {}
        self._silent = Silent()
        # Kept here, as the event loop refers to tasks weakly.
        self._beginning: set[asyncio.Task[Any]] = set()

    def address(self, node: str | None) -> Address:
        """The address for a process of `node`, or for those of any node.

        Raises:
            ValueError: it is another node, and none may connect here.
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
        """Begin with those who wait. asyncio's own servers accept as many as wait before they look at any:
        strangers could take all descriptors of the process."""
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
                return  # nobody waits any more, or who did has gone
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
    """Gives each question that comes by a connection to a function, and sends back what that returns."""

    def __init__(
        self,
        listening: Listening,
        answer: Callable[..., Awaitable[object]],
        *,
        as_raised: type[Exception] = PeerError,
    ) -> None:
        """Errors of `as_raised` are raised in who has asked as they are, others as a PeerError in words."""
        self._answer, self._as_raised = answer, as_raised
        self.listener = Listener(listening, self._receive)
        self._tasks: set[asyncio.Task[None]] = set()

    def _receive(self, connection: Connection, key: int, *question: Any) -> None:
        # Side by side: an answer may wait, as `admit` does at the gate, and must not hold up those behind it.
        task = asyncio.create_task(self._reply(connection, key, *question))
        # The event loop refers to tasks weakly: without this set one may be collected before it ends.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, connection: Connection, key: int, *question: Any) -> None:
        try:
            # Within this block, as an answer may be too long to be sent: that is an error for the asker, too.
            connection.send(key, await self._answer(*question), None)
        except Exception as error:  # noqa: BLE001 the asker waits for an answer, and has this one
            as_raised = isinstance(error, self._as_raised)
            connection.send(key, None, error if as_raised else PeerError(in_words(error)))


# -- connecting --


class Caller:
    """The side that connects, when it is first needed; a message of it may ask for a result."""

    def __init__(self, peer: str, where: Callable[[], Awaitable[Address]]) -> None:
        """`peer` is at the other end, in words."""
        self._peer, self._where = peer, where
        self.near = False
        """True once it is connected to a process of its own node."""
        self._waits: dict[object, asyncio.Future[Any]] = {}
        self._keys = count()
        self._end_error: PeerError | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @property
    def has_lost(self) -> bool:
        """True once its connection has failed or ended, which it does not make again."""
        made = self._connecting
        failed = made is not None and made.done() and (made.cancelled() or made.exception() is not None)
        return failed or self._end_error is not None

    async def connection(self) -> Connection:
        """
        Raises:
            PeerError: nobody is there, or this process cannot reach that place.
        """
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        # Not with the first asker, who may be cancelled.
        return await asyncio.shield(self._connecting)

    async def ask(self, *question: object) -> Any:
        """`call`, under a key of its own, of who has `Answers`."""
        key = next(self._keys)
        return await self.call(key, key, *question)

    async def call(self, key: object, *message: object) -> Any:
        """Send a message, and wait for the result that comes under `key`.

        Raises:
            PeerError: the other end has gone.
            Exception: the other end has sent an error.
        """
        connection = await self.connection()
        # Behind the await, and with none before the wait is noted: at the end of the connection all waits
        # that are noted fail, and nobody would fail one that is noted later.
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
        """Take the result of a call; what nobody waits for, or not any more, is dropped."""
        if (waiting := self._waits.get(key)) is not None:
            settle(waiting, result, error)

    def _fail_waits(self, error: Exception | None) -> None:
        self._end_error = PeerError(
            f"{self._peer} has ended the connection" + (f": {error}" if error else "")
        )
        # `settle` only schedules those who wait: none of them takes itself out of the dict meanwhile.
        for waiting in self._waits.values():
            settle(waiting, None, self._end_error)


class Callers:
    """Asks those who listen at known addresses, by one connection to each."""

    def __init__(self, peer: str) -> None:
        """`peer` they are, in words."""
        self._peer = peer
        self.by_address: dict[Address, Caller] = {}

    async def ask(self, address: Address, *question: object, timeout_s: float | None) -> Any:
        """Send a question, and wait for its answer.

        A link that is cut tells nobody of an end. What Ray takes for lost is lost here, too, and nothing
        sooner: until then the link may come back, and what was sent arrives.

        Raises:
            PeerError: nobody is there, or they have gone.
            TimeoutError: they do not answer, or a forked process keeps the connection of the dead open.
        """
        # Who asks again tries again: a link that was reset may have come back.
        if address not in self.by_address or self.by_address[address].has_lost:
            self.by_address[address] = Caller(self._peer, partial(_known, address))
        answer = asyncio.create_task(self.by_address[address].ask(*question))
        try:
            async with asyncio.timeout(timeout_s):
                while not (await asyncio.wait([answer], timeout=LOOK_S))[0]:
                    # In a thread: Ray's store is asked, which blocks.
                    if await asyncio.to_thread(on_lost_node, address):
                        raise PeerError(f"{self._peer} was on a node that is lost")
                return await answer
        finally:
            answer.cancel()


class Senders:
    """Sends to those who listen at known addresses, by one connection to each, and waits for nobody."""

    def __init__(self, peer: str) -> None:
        """`peer` they are, in words."""
        self._peer = peer
        self.by_address: dict[Address, Connection] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    def to(self, address: Address) -> Connection:
        """The connection to an address. What is sent where nobody can be reached is gone."""
        if address not in self.by_address:
            # The connection is there before its socket: what is sent meanwhile waits in it.
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
        # The next message tries again: a link may have come back.
        self.by_address.pop(address, None)


async def _connect(connection: Connection, place: str | tuple[str, int], peer: str) -> None:
    near, loop = isinstance(place, str), asyncio.get_running_loop()
    create: Any = loop.create_unix_connection if near else loop.create_connection
    for number in range(CONNECT_TRIES):
        if number:
            # A listener that has no descriptor left ends those that have not shown yet who they are.
            await asyncio.sleep(ROOM_WAIT_S * 2 ** (number - 1))
        sock = socket.socket(socket.AF_UNIX if near else socket.AF_INET)
        sock.setblocking(False)
        try:
            # Connected by itself, so that only an error of the way there is told as one.
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


# -- nodes of Ray's cluster --


def this_node() -> str:
    """The node that this process runs on, as Ray names it; "" outside Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def has_other_nodes() -> bool:
    """Return True if Ray's cluster has more than this node."""
    return ray.is_initialized() and sum(node["Alive"] for node in ray.nodes()) > 1


def on_lost_node(address: Address) -> bool:
    """Return True if this is an address of a node that has left Ray's cluster."""
    place, _ = address
    if isinstance(place, str) or not ray.is_initialized():
        return False
    # A node that has come back is a second one to Ray, at the same address.
    lives = [node["Alive"] for node in ray.nodes() if node["NodeManagerAddress"] == place[0]]
    return bool(lives) and not any(lives)


def lost_nodes() -> str:
    """The addresses of nodes that have left Ray's cluster, in words."""
    return (
        ", ".join(sorted({node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]}))
        or "unknown"
    )


def node_address() -> str:
    """The address that Ray uses for this node; loopback where nothing else reaches it, and outside Ray."""
    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"
