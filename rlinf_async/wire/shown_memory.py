"""Values in the memory of the process that has them: readers on its machine map it, others have it sent."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.wire.connection import Address, Callers, Connection, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import MemoryPool, Reuse, read

READ_TIMEOUT_S = 60.0


class ShownMemory:
    """The side of the process that has the values."""

    def __init__(self, listening: Listening, reuse: Reuse = Reuse.AT_ONCE) -> None:
        self._pool, self._listener = MemoryPool(reuse), Listener(listening, self._show)

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield what a message says of `value`, by which `Reader` finds it as long as the block lasts."""
        with self._pool.holding(value) as place:
            yield [place, self._address]

    @cached_property
    def _address(self) -> Address:
        return self._listener.address_for_all()

    def _show(self, connection: Connection, key: int, place: Sequence[Any]) -> None:
        try:
            connection.send(key, pickle.dumps(read(place), protocol=5), None)
        # A ValueError is of a message that is too long. The asker waits, and is told instead of being cut
        # off.
        except (PeerError, ValueError) as error:
            connection.send(key, None, PeerError(str(error)))


class Reader:
    """The side that reads values of others."""

    def __init__(self, *, timeout_s: float | None = READ_TIMEOUT_S) -> None:
        self._callers, self._timeout_s = Callers("the memory of another process"), timeout_s

    async def read(self, place: Sequence[Any], address: Address) -> Any:
        """
        Raises:
            PeerError: the process that had it is gone, or does not hold it any more.
        """
        # Its memory may be on another machine, or hidden from this process: then its process sends it.
        with suppress(PeerError):
            return read(place)
        try:
            return pickle.loads(await self._callers.ask(address, place, timeout_s=self._timeout_s))
        except TimeoutError as error:
            raise PeerError(f"another process has not sent it for {self._timeout_s:g} s") from error
