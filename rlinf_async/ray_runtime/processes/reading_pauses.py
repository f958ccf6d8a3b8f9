"""When a request channel reads its askers.

Theory of operation. A request that arrives while every inference rank is busy changes nothing before a rank
waits again. To read it at once would wake the channel for each request by itself, and a process that wakes
costs more than all that is done for a request. So requests of the channel's own node stay in their sockets
meanwhile, and are read together when a rank waits. They carry the time at which they were sent, so that waits
are measured as they were. While a rank waits, each request is read as it comes.

An asker's death is not seen during a pause, nor a deadline of an unread request: hence `MAX_PAUSE_S`. A
socket holds some 200 kB; a rank would get the rest one batch later. So a connection by which that much comes
between two takes is read all the time.
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from rlinf_async.wire.connection import Connection

MAX_PAUSE_S = 0.05
"""The longest time without a read, if no rank waits. Forward passes of large policies take longer."""
MAX_UNREAD_BYTES = 100_000
"""The most bytes of requests that are left in a socket: half of what Linux lets it hold by default."""


class ReadingPauses:
    """The connections of askers, which are read while a rank waits."""

    def __init__(self) -> None:
        self._asking: set[Connection] = set()
        """Connections with requests since they were paused last: more will come by them."""
        self._paused: set[Connection] = set()
        self._heard: dict[Connection, int] = {}
        """Bytes of requests since `resume`, by connection."""
        self._heavy: WeakSet[Connection] = WeakSet()
        """Connections that have had more at once, and are not paused again."""
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, connection: Connection, size: int, *, is_awaited: bool) -> None:
        """Note a request with `size` bytes by `connection`; `is_awaited` is True if a rank waits for one."""
        self._heard[connection] = self._heard.get(connection, 0) + size
        if connection not in self._heavy:
            self._asking.add(connection)
        if not is_awaited:
            self.pause()

    def pause(self) -> None:
        """Leave the next requests unread, as no rank waits for them."""
        for connection in self._asking:
            connection.pause()
        self._paused |= self._asking
        self._asking.clear()
        if self._paused and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_PAUSE_S, self.resume)

    def resume(self) -> None:
        """Read all connections, as a rank waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in self._paused:
            connection.resume()
        self._paused.clear()
        self._heavy.update(one for one, size in self._heard.items() if size > MAX_UNREAD_BYTES)
        self._heard.clear()
