"""Sockets of processes that share an event loop: streams are late, torn into pieces, cut, and parted."""

import asyncio
import errno
import os
import socket as real
import struct
from collections import deque
from itertools import count

from tests.wire.simulation.processes import PROCESS

CONNECT_TIMEOUT_S = 130.0
"""After which Linux gives up to reach a host that does not answer."""
RETRANSMIT_TIMEOUT_S = 924.0
"""After which Linux gives up a stream whose bytes nobody confirms."""
LONGEST_DELAY_S = 5.0
"""Of a message, where there is a way: a connection, a question and its answer over a link that is cut
meanwhile take less than the shortest limit of the product, `wire.shown_memory.READ_TIMEOUT_S`."""
RESOLUTION_S = 1e-6
"""A timer of asyncio may fire so much too early."""
OFFSETS = (1, 7, 8, 9, 31, 33, -1)
"""Where what is written at once may be torn: around lengths and proofs."""


class Network:
    """Fills the module `socket` for processes; `rng` draws how long everything takes."""

    AF_UNIX, AF_INET = real.AF_UNIX, real.AF_INET

    def __init__(self, rng, *, delay_s, tears=0.1, out_of_room=0.0):
        self.rng, self.delay_s, self.tears, self.out_of_room = rng, delay_s, tears, out_of_room
        self.listeners = {}
        self.ports = count(40_000)
        self.parted = set()
        """Pairs of nodes between which nothing passes now."""
        self.held = []
        """What goes on when they are joined again."""
        self.errors = []
        """Errors of protocols, each of which has ended its connection."""

    # -- as the module --

    def socket(self, family):
        return Socket(self, family)

    def create_server(self, place, *, backlog):
        made = Socket(self, real.AF_INET)
        made.name = (place[0], next(self.ports))
        made.listen(backlog)
        return made

    # -- faults --

    def delay(self, one, other):
        """Seconds that a message takes from one process to another."""
        if one.late:
            return self.rng.random() * LONGEST_DELAY_S
        seconds = self.rng.random() * self.delay_s * one.slowness * other.slowness
        return min(LONGEST_DELAY_S, seconds * 50 if self.rng.random() < 0.01 else seconds)

    def passes(self, one, other):
        return one == other or frozenset((one, other)) not in self.parted

    def part(self, one, other):
        self.parted.add(frozenset((one, other)))

    def join(self, one, other):
        self.parted.discard(frozenset((one, other)))
        self.go_on()

    def go_on(self):
        held, self.held = self.held, []
        for go_on in held:
            go_on()

    async def way(self, one, other):
        """Wait until something passes between two nodes."""
        while not self.passes(one, other):
            joined = asyncio.get_running_loop().create_future()
            self.held.append(lambda joined=joined: joined.done() or joined.set_result(None))
            await joined

    def end_of(self, process, *, abruptly):
        """The kernel closes what a process has open; `abruptly`, what it had sent last is lost as well."""
        for listening in list(process.listening):
            listening.close()
        for end in list(process.ends):
            end.die(abruptly=abruptly)

    def vanish(self, process):
        """Its machine is off: nobody is told."""
        for listening in list(process.listening):
            listening.close()
        for end in list(process.ends):
            end.vanish()


class Socket:
    """What of a socket is used by those who listen and connect."""

    def __init__(self, network, family):
        self.network, self.family, self.name = network, family, ""
        self.process, self.end = PROCESS.get(), None
        self._queue, self._callback, self._rings = deque(), None, False

    def bind(self, name):
        self.name = name.encode()

    def listen(self, _):
        self.network.listeners[self._key(self.name)] = self
        self.process.listening[self] = None

    def setblocking(self, _):
        pass

    def getsockname(self):
        return self.name

    def getsockopt(self, *_):
        return struct.pack("3i", self.process.number, os.geteuid(), os.getegid())

    def close(self):
        self.network.listeners.pop(self._key(self.name), None)
        self.process.listening.pop(self, None)
        for waiting in self._queue:
            waiting.end.die(abruptly=True)
        self._queue.clear()
        if self.end is not None:
            self.end.die(abruptly=True)

    def when_readable(self, callback, *arguments):
        self._callback = callback and (callback, arguments)
        self._ring()

    def accept(self):
        if not self._queue:
            raise BlockingIOError(errno.EAGAIN, "nobody waits")
        if self.network.rng.random() < self.network.out_of_room:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted = self._queue.popleft()
        return accepted, accepted.name

    def recv(self, _):
        return self.end.read_now()

    def _ring(self):
        if self._queue and self._callback and not self._rings:
            self._rings = True
            asyncio.get_running_loop().call_soon(self._readable, context=self.process.context.copy())

    def _readable(self):
        self._rings = False
        if self._callback and self._queue and not self.process.dead:
            callback, arguments = self._callback
            callback(*arguments)
        self._ring()

    async def connect(self, place):
        network, process, key = self.network, self.process, self._key(place)
        listening = network.listeners.get(key)
        if listening is not None and listening.process.node != process.node:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await network.way(process.node, listening.process.node)
            except TimeoutError:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
        await asyncio.sleep(network.delay(process, process if listening is None else listening.process))
        listening = network.listeners.get(key)
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        accepted = Socket(network, self.family)
        accepted.process, accepted.name = listening.process, (process.node, 0)
        self.end, accepted.end = stream(network, process, listening.process)
        listening._queue.append(accepted)
        listening._ring()

    def _key(self, place):
        if self.family == real.AF_UNIX:
            return self.process.node, place.encode() if isinstance(place, str) else place
        return tuple(place)


def stream(network, one, other):
    """Two ends, each of which is the transport of a process."""
    ends = End(network, one), End(network, other)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    return ends


EOF = object()


class End(asyncio.Transport):
    """One end of a stream, as the transport of a protocol."""

    def __init__(self, network, process):
        super().__init__()
        self._network, self.process = network, process
        self._loop, self._context = asyncio.get_running_loop(), process.context.copy()
        self.peer = None
        self._protocol = None
        self._incoming = deque()
        self._is_paused = False
        self._last_due = 0.0
        self.over = False
        """Nothing is written or read here any more."""
        process.ends[self] = None

    # -- as a transport --

    def write(self, data):
        if not self.over and data:
            self.process.burn(data)
            for piece in self._torn(bytes(data)):
                self.peer.take(piece)

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def is_closing(self):
        return self.over

    def pause_reading(self):
        self._is_paused = True

    def resume_reading(self):
        self._is_paused = False
        self._loop.call_soon(self._pump, context=self._context)

    def close(self):
        self.abort()

    def abort(self):
        if not self.over:
            self.peer.take(EOF)
            self._lose(None)

    async def attach(self, protocol):
        was_over, self._protocol = self.over, protocol
        protocol.connection_made(self)
        await asyncio.sleep(0)
        if was_over:
            protocol.connection_lost(None)
        else:
            self._loop.call_soon(self._pump, context=self._context)

    # -- as a part of the world --

    def take(self, item):
        """Something is on its way to this end, behind all that is already."""
        if self.over:
            return
        now = self._loop.time()
        due = max(self._last_due, now + self._network.delay(self.peer.process, self.process))
        self._last_due = due
        self._incoming.append((due, item))
        self._loop.call_at(due, self._pump, context=self._context)

    def read_now(self):
        """What has come until now; b"" at the end of the stream, as the kernel tells it."""
        if self.over:
            return b""
        passes = self._network.passes(self.process.node, self.peer.process.node)
        if not (passes and self._incoming and self._is_due()):
            raise BlockingIOError(errno.EAGAIN, "nothing has come")
        data = b""
        while self._incoming and self._is_due() and isinstance(self._incoming[0][1], bytes):
            data += self._incoming.popleft()[1]
        if data:
            self.process.burn()
        return data

    def _is_due(self):
        return self._incoming[0][0] <= self._loop.time() + RESOLUTION_S

    def die(self, *, abruptly):
        if self.over:
            return
        self._forget()
        if abruptly:
            self.peer._incoming.clear()
        self.peer.take(ConnectionResetError(errno.ECONNRESET, "reset") if abruptly else EOF)

    def vanish(self):
        self._forget()
        self.peer.unheard()

    def unheard(self):
        """Nobody confirms what this end writes."""
        lost = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._loop.call_later(RETRANSMIT_TIMEOUT_S, self._lose, lost, context=self._context)

    def reset(self):
        """The stream is cut, and both ends are told; what was under way is lost."""
        for end in (self, self.peer):
            end._incoming.clear()
            end.take(ConnectionResetError(errno.ECONNRESET, "reset"))

    @property
    def owner(self):
        """Who has connected by the protocol, and is told of its end; None for one that has been accepted."""
        told = getattr(self._protocol, "_on_loss", None)
        return getattr(getattr(told, "func", told), "__self__", None)

    @property
    def idle(self):
        """Nothing is under way, nor about to be."""
        protocols = self._protocol, self.peer._protocol
        known = all(protocol is not None and protocol._handshake.done for protocol in protocols)
        unsent = known and any(protocol._unsent for protocol in protocols)
        return known and not (unsent or self._incoming or self.peer._incoming)

    def cut(self):
        """The stream is cut, and both ends know at once."""
        for end in (self, self.peer):
            end._forget()
            end.process.run(end._protocol.connection_lost, ConnectionResetError(errno.ECONNRESET, "reset"))

    def _torn(self, data):
        if len(data) > 1 and self._network.rng.random() < self._network.tears:
            at = self._network.rng.choice(OFFSETS)
            return [piece for piece in (data[:at], data[at:]) if piece]
        return [data]

    def _pump(self):
        if self._protocol is None or self.over or self._is_paused:
            return
        if not self._network.passes(self.process.node, self.peer.process.node):
            if self._incoming:
                self._network.held.append(lambda: self._loop.call_soon(self._pump, context=self._context))
            return
        while not (self.over or self._is_paused) and self._incoming and self._is_due():
            _, item = self._incoming.popleft()
            if item is EOF:
                self._lose(None)
            elif isinstance(item, Exception):
                self._lose(item)
            else:
                self._hear(item)

    def _hear(self, data):
        self.process.burn()
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 asyncio ends a connection whose protocol fails
            self._network.errors.append(error)
            if not self.over:
                self.peer.take(EOF)
                self._lose(error)

    def _lose(self, error):
        if not self.over:
            self._forget()
            if self._protocol is not None and not self.process.dead:
                self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def _forget(self):
        self.over = True
        self._incoming.clear()
        self.process.ends.pop(self, None)
