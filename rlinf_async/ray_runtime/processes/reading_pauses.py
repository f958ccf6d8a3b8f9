"""When a request channel reads its askers.

Theory of operation. A request that arrives while every inference rank is busy changes nothing before a rank
waits again. To read it at once would wake the channel for each request by itself, and a process that wakes
costs more than all that is done for a request. So requests of the channel's own node stay in their sockets
meanwhile, and are read together by the next take (`read`). If that gives the rank a batch, the event loop
never watches these sockets. Requests carry the time at which they were sent, so that waits are measured as
they were. While a rank waits, each request is read as it comes (`resume`).

An asker's death is not seen during a pause, nor a deadline of an unread request: hence `MAX_PAUSE_S`. A
socket holds some 200 kB; a rank would get the rest one batch later. So a connection by which that much comes
between two takes is read all the time.
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from rlinf_async.wire.connection import Connection

MAX_PAUSE_S = 0.5
"""The longest time without a read, if no rank waits. Forward passes of large policies may take longer."""
MAX_UNREAD_BYTES = 100_000
"""The most bytes of requests that are left in a socket: half of what Linux lets it hold by default."""


class ReadingPauses:
    """The connections of askers, which are read while a rank waits."""

    def __init__(self) -> None:
        # Dicts, in place of sets: the order of reads must not depend on addresses in memory.
        self._asking: dict[Connection, None] = {}
        """Connections with requests since they were paused last: more will come by them."""
        self._paused: dict[Connection, None] = {}
        self._heavy: WeakSet[Connection] = WeakSet()
        """Connections by which more has come at once, and which are not paused again."""
        self._read_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def has(self, connection: Connection) -> bool:
        """Return True if `connection` is paused: its requests are read by `read` alone."""
        return connection in self._paused

    def asked(self, connection: Connection, *, is_awaited: bool) -> None:
        """Note a request that the event loop has read; `is_awaited` is True if a rank waits for one."""
        if connection not in self._heavy:
            self._asking[connection] = None
        if not is_awaited:
            self.pause()

    def read(self) -> None:
        """Read what has come by paused connections; they stay paused."""
        self._read_at = _now()
        for connection in list(self._paused):
            size = connection.read_waiting()
            if size is None:
                del self._paused[connection]
            elif size > MAX_UNREAD_BYTES:
                self._heavy.add(connection)
                del self._paused[connection]
                connection.resume()

    def pause(self) -> None:
        """Leave the next requests unread, as no rank waits for them."""
        if not self._asking:
            return
        for connection in self._asking:
            connection.pause()
        self._paused |= self._asking
        self._asking.clear()
        self._look_in(MAX_PAUSE_S)

    def resume(self) -> None:
        """Read all connections, as a rank waits."""
        for connection in self._paused:
            connection.resume()
        self._paused.clear()

    def _look_in(self, seconds: float) -> None:
        """Set the one timer of all pauses. No read moves it: it is early then, and set again."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """End the pauses if the last read was too long ago."""
        self._timer = None
        if self._paused:
            seconds = self._read_at + MAX_PAUSE_S - _now()
            if seconds > 0:
                self._look_in(seconds)
            else:
                self.resume()


def _now() -> float:
    return asyncio.get_running_loop().time()
