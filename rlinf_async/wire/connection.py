"""Direct connections between processes of a run, without Ray: unix sockets within a node, TCP between nodes.

Both ends first prove to each other that they know the listener's token (`wire.strangers`); until then nothing
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
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.requests import settle
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.nodes import has_other_nodes, node_address, this_node
from rlinf_async.wire.strangers import STRANGERS, Handshake, NotKnown, Silent, stranger_by_account

LENGTH_FORMAT = struct.Struct("!Q")
LONGEST_MESSAGE_BYTES = 2**36
"""Longer than any message of a run: a greater length means a broken frame."""
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
READ_BYTES = 256 * 1024
"""The most bytes that one read returns, as in asyncio: more than Linux lets a socket hold by default."""
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
        receive: Receive,
        *,
        token: bytes = b"",
        accepted: socket.socket | None = None,
        on_loss: Callable[[Exception | None], None] | None = None,
        on_known: Callable[[Connection, str | None], None] = lambda connection, refusal: None,
    ) -> None:
        """
        Args:
            token: the token of the listener; a connecting end takes it from the address (`connect`).
            accepted: the socket of the listening end, for `read_waiting`.
            on_loss: called when the connection ends after its handshake. Only the connecting end gives it: an
                end without it is the listening end.
            on_known: called once with None when the handshake succeeds or the peer leaves during it, and with
                a text when the peer is refused.
        """
        self._receive, self._token, self._on_loss, self._on_known = receive, token, on_loss, on_known
        self._accepted = accepted
        self._begin_handshake()
        self._unsent: list[bytes] = []

    def send(self, *message: object) -> None:
        """Send a message after the handshake; a message to a process that has ended is dropped.

        Raises:
            ValueError: the message is longer than a peer accepts.
        """
        frame = _frame(message)
        if not self._unsent:
            # One flush per turn of the loop: one system call writes all messages of that turn.
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += frame

    def send_now(self, *message: object) -> None:
        """`send`, without another turn of the event loop before the message is written."""
        self._unsent += _frame(message)
        self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._aborted:
            self._transport.abort()
        elif self._on_loss is None:
            self._transport.write(self._handshake.begin())
            # A process that connects and sends nothing would hold the socket for ever.
            asyncio.get_running_loop().call_later(TOKEN_TIMEOUT_S, self._refuse_silent)

    def data_received(self, data: bytes) -> None:
        if not self._handshake.done:
            self._buffer += data
            self._hear_handshake()
            data = b""
        # The proof must come first: unpickling a message runs code that its sender has chosen.
        if self._handshake.done:
            self._hear_messages(data)

    def _hear_handshake(self) -> None:
        while not self._handshake.done and len(self._buffer) >= self._handshake.awaited:
            words = bytes(self._buffer[: self._handshake.awaited])
            del self._buffer[: len(words)]
            try:
                self._transport.write(self._handshake.hear(words))
            except NotKnown:
                self._refuse("has not shown that it knows the token")
                return
            if self._handshake.done:
                self._on_known(self, None)
                self._flush()

    def _hear_messages(self, data: bytes) -> None:
        """Receive the messages that end in `data`, and keep the beginning of the next one."""
        buffer = self._buffer
        if buffer:
            buffer += data
        end, heard = 0, memoryview(buffer or data)
        while len(heard) - end >= LENGTH_FORMAT.size:
            (length,) = LENGTH_FORMAT.unpack_from(heard, end)
            if length > LONGEST_MESSAGE_BYTES:
                # This ends the connection: asyncio closes the transport of a protocol that raises.
                raise ConnectionError(f"a frame of {length} bytes is longer than {LONGEST_MESSAGE_BYTES}")
            begin = end + LENGTH_FORMAT.size
            if len(heard) < begin + length:
                break
            end = begin + length
            # `loads` copies: no message refers to the buffer, which is written again.
            self._receive(self, *pickle.loads(heard[begin:end]))
        heard.release()  # a bytearray with a view on it cannot be shortened
        if buffer:
            del buffer[:end]
        elif end < len(data):
            buffer += data[end:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self._handshake.done:
            self._on_known(self, None)
        elif self._on_loss is not None:
            self._on_loss(error)

    async def connect(self, address: Address, peer: str) -> None:
        """Connect to the listener at `address`, and return after the handshake; unsent messages follow it.

        Raises:
            PeerError: no process listens there, this process cannot reach it, or it ends each connection
                before the handshake. `peer` names the process in the message.
        """
        place, self._token = address
        for number in range(CONNECT_TRIES):
            if number:
                # A listener without a free descriptor ends connections before their handshake is done.
                await asyncio.sleep(ROOM_WAIT_S * 2 ** (number - 1))
            if await self._shake_hands(await _connected(place, peer)):
                return
        raise PeerError(
            f"{peer} has ended the connection {CONNECT_TRIES} times before the handshake was done"
        )

    def pause(self) -> None:
        """Read nothing until `resume`; the end of the connection is not noticed before, either."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after `pause`."""
        self._transport.resume_reading()

    def read_waiting(self) -> int | None:
        """Read what has come since `pause`, at once; return its bytes, or None if the connection has ended.

        Only for the listening end. The event loop watches no socket for it: a pause lasts on.
        """
        assert self._accepted is not None
        try:
            data = self._accepted.recv(READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.resume()  # the transport finds the end itself, and closes
            return None
        try:
            self.data_received(data)
        except Exception as error:  # noqa: BLE001 asyncio also reports errors of what it reads, and closes
            self.abort()
            message = {"message": "an error in a message", "exception": error, "protocol": self}
            asyncio.get_running_loop().call_exception_handler(message)
            return None
        return len(data)

    def abort(self) -> None:
        """End the connection at once."""
        # A listener that accepts many at once may end one before asyncio has made its transport.
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, connected: socket.socket) -> bool:
        """Return True after the handshake; False if the peer closes before, and nothing was read or sent."""
        loop, near = asyncio.get_running_loop(), connected.family == socket.AF_UNIX
        create: Any = loop.create_unix_connection if near else loop.create_connection
        self._begin_handshake()
        known = loop.create_future()
        self._on_known = lambda *_: settle(known, self._handshake.done, None)
        await create(partial(_itself, self), sock=connected)
        return bool(await known)

    def _begin_handshake(self) -> None:
        self._handshake = Handshake(self._token, "listens" if self._on_loss is None else "connects")
        self._buffer = bytearray()

    def _refuse_silent(self) -> None:
        if not self._handshake.done:
            self._refuse(f"has not begun the handshake within {TOKEN_TIMEOUT_S:g} s")

    def _refuse(self, why: str) -> None:
        self._on_known(self, why)
        self._transport.abort()

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
                    STRANGERS.note("a process", self._listening.words, f"no room is left ({error.strerror})")
                    self._silent.end_one()
                    loop.remove_reader(listening)
                    loop.call_later(ROOM_WAIT_S, self._go_on, listening)
                return  # the backlog is empty, or the waiting process has left
            near = listening.family == socket.AF_UNIX
            if near and (stranger := stranger_by_account(connected)) is not None:
                STRANGERS.note(stranger, self._listening.words, "the run belongs to another")
                connected.close()
                continue
            connected.setblocking(False)
            host = "this machine" if near else str(place[0])
            known = partial(self._know, host)
            connection = Connection(self._receive, token=self._token, accepted=connected, on_known=known)
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
        # An abstract name of Linux: there is no file, and the name goes with the process.
        near.bind(f"\0{self._listening.socket_name}{secrets.token_hex(16)}")
        near.listen(MAX_WAITING)
        return near


async def _connected(place: str | tuple[str, int], peer: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    sock.setblocking(False)
    try:
        # A separate call, so that only errors of connecting become this PeerError.
        await asyncio.get_running_loop().sock_connect(sock, place)
    except OSError as error:
        sock.close()
        raise PeerError(f"{peer} cannot be reached at {place!r}: {error.strerror}") from error
    return sock


def _frame(message: tuple[object, ...]) -> tuple[bytes, bytes]:
    pickled = pickle.dumps(message, protocol=5)
    if len(pickled) > LONGEST_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(pickled)} bytes is longer than {LONGEST_MESSAGE_BYTES}")
    return LENGTH_FORMAT.pack(len(pickled)), pickled


def _itself(connection: Connection) -> Connection:
    return connection
