"""Values that stay in their process's memory: readers on the same machine map it, others fetch a copy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.wire.connection import Address, Connection, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import MemoryPool, Reuse, read
from rlinf_async.wire.peers import Peers

READ_TIMEOUT_S = 60.0


class ShownMemory:
    """The side of the process that holds the values."""

    def __init__(self, listening: Listening, reuse: Reuse = Reuse.AT_ONCE) -> None:
        self._pool, self._listener = MemoryPool(reuse), Listener(listening, self._show)

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield a reference to `value` for a message; `Reader` resolves it as long as the block lasts."""
        with self._pool.holding(value) as place:
            yield [place, self._address]

    @cached_property
    def _address(self) -> Address:
        return self._listener.address_for_all()

    def _show(self, connection: Connection, key: int, place: Sequence[Any]) -> None:
        try:
            connection.send(key, pickle.dumps(read(place), protocol=5), None)
        # `send` raises a ValueError for a message that is too long. The reader gets the error instead of the
        # end of its connection.
        except (PeerError, ValueError) as error:
            connection.send(key, None, PeerError(str(error)))


class Reader:
    """The side that reads values of other processes."""

    def __init__(self, *, timeout_s: float | None = READ_TIMEOUT_S) -> None:
        self._owners, self._timeout_s = Peers("the memory of another process"), timeout_s

    async def read(self, place: Sequence[Any], address: Address) -> Any:
        """Return the value at `place` of the process that listens at `address`.

        Raises:
            PeerError: that process has died, does not answer, or does not hold the value any more.
        """
        # The memory may be on another machine, or hidden from this process: then its owner sends a copy.
        with suppress(PeerError):
            return read(place)
        return pickle.loads(await self._owners.call(address, place, timeout_s=self._timeout_s))
