"""Values that stay in their process's memory: readers on the same machine map it, others fetch a copy."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.wire.connection import Address, Connection, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import SMALLEST_LENT_BYTES, MemoryPool, Reuse, read, starts_of
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


Kind = tuple[torch.Size, torch.dtype]


class RolloutMemory:
    """Memory for the observations of a shard, one rollout after the other; fills `hosts.contract.Rows`.

    An observation is copied once, into its row of the memory file of its rollout. The request and the rollout
    then have its place alone (`wire.memory`). The rows of a field lie one behind the other, so that a rollout
    has them as one array, [T, B, ...]. The first rollout tells the fields, and has no such file.
    """

    def __init__(self, pool: MemoryPool, rows: int) -> None:
        """`rows`: the observations of a rollout, at most."""
        self._pool, self._rows, self._row = pool, rows, 0
        self._kinds: dict[str, Kind] = {}
        """The large fields of observations so far."""
        self._fields: dict[str, torch.Tensor] = {}
        """Their memory in this rollout, [rows, B, ...]."""

    def begin(self) -> None:
        """A rollout begins: the next observation is its first."""
        self._row = 0
        lengths = [self._rows * _bytes(*kind) for kind in self._kinds.values()]
        *starts, size = starts_of(lengths)
        if not size:
            return
        memory = torch.from_numpy(self._pool.lend(size))
        self._fields = {
            name: memory[start : start + length].view(dtype).view(self._rows, *shape)
            for (name, (shape, dtype)), start, length in zip(
                self._kinds.items(), starts, lengths, strict=True
            )
        }

    def next(self) -> None:
        """A step: the next observation is that after it."""
        self._row += 1

    def empty(self, name: str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the CPU for the field `name` of the observation, its values undefined."""
        kind = torch.Size(shape), dtype
        field = self._fields.get(name)
        if field is not None and (field.shape[1:], field.dtype) == kind and self._row < self._rows:
            return field[self._row]
        if _bytes(*kind) >= SMALLEST_LENT_BYTES:
            self._kinds[name] = kind
        return torch.empty(shape, dtype=dtype)


def _bytes(shape: torch.Size, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
