"""The form in which tensors travel between Ray processes: numpy arrays in a message or in shared memory."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.memory import MemoryPool, read

INLINE_BYTES = 100_000
"""Payloads of up to this size travel within a message: beyond it Ray would put them into shared memory."""
NEAR_BYTES = 10_000
"""Payloads above this size stay in memory that both sides map, where they can: many together take longer
within a message."""

READ_ERRORS = (PeerError, ray.exceptions.ObjectLostError)
"""Errors of reading a value whose holder is gone."""


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that was one before it was packed."""

    data: np.ndarray


@dataclass(frozen=True, slots=True)
class _Raw:
    """A tensor whose type numpy does not know, as bytes of the same width."""

    data: np.ndarray
    dtype: torch.dtype


_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_TYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


def seal(value: object) -> bytes | list[Any]:
    """Return the part of `value` that a message carries: all of it if it is small, else a reference in a
    list.

    A process that passes a message on touches no tensor either way.
    """
    packed = pack(value)
    return _sealed(packed, _size(packed))


@contextmanager
def sealed(value: object, memory: MemoryPool | None) -> Iterator[bytes | list[Any]]:
    """`seal`, for a message that is dealt with before the block ends: large values stay in `memory`."""
    packed = pack(value)
    size = _size(packed)
    if memory is None or size <= NEAR_BYTES:
        yield _sealed(packed, size)
    else:
        with memory.holding(packed) as place:
            # Valid in this block only: afterwards the file holds another value, and the reader must have
            # copied.
            yield place


async def fetch(payloads: Sequence[bytes | list[Any]]) -> list[Any]:
    """Return the values that were sealed, in order."""
    far: list[Any] = [payload[0] for payload in payloads if _is_reference(payload)]
    arrived = iter(await asyncio.gather(*far) if far else ())
    return [unpack(next(arrived) if _is_reference(payload) else _opened(payload)) for payload in payloads]


async def fetch_each(payloads: Sequence[bytes | list[Any]]) -> list[Any]:
    """`fetch`, with a `PeerError` in the place of each value whose holder is gone."""
    try:
        return await fetch(payloads)
    except READ_ERRORS:
        return [await _fetched(payload) for payload in payloads]


async def _fetched(payload: bytes | list[Any]) -> Any:
    try:
        (value,) = await fetch([payload])
    except READ_ERRORS as error:
        return PeerError(f"what was asked with cannot be read: {error}")
    return value


def _sealed(packed: object, size: int) -> bytes | list[Any]:
    # A list with one reference, as Ray passes on references in lists without fetching what they refer to.
    return pickle.dumps(packed, protocol=5) if size <= INLINE_BYTES else [ray.put(packed)]


def _is_reference(payload: bytes | list[Any]) -> bool:
    return len(payload) == 1 and not isinstance(payload, bytes)


def _opened(payload: bytes | list[Any]) -> Any:
    return pickle.loads(payload) if isinstance(payload, bytes) else read(payload)


def pack(value: Any) -> Any:
    """Replace every tensor in nested dicts, lists and tuples by an array; the rest stays as it is."""
    if isinstance(value, torch.Tensor):
        # On a CPU tensor that is contiguous neither call copies: the array shares the tensor's memory.
        tensor = value.detach().cpu().contiguous()
        if tensor.dtype in _NUMPY_TYPES:
            return tensor.numpy()
        return _Raw(tensor.view(_SAME_WIDTH[tensor.element_size()]).numpy(), tensor.dtype)
    if isinstance(value, np.ndarray):
        return _Array(value)
    if isinstance(value, dict):
        return {name: pack(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(item) for item in value)
    return value


def unpack(value: Any) -> Any:
    """The inverse of `pack`; tensors may share read-only memory, so copy before writing to one."""
    if isinstance(value, np.ndarray):
        return _as_tensor(value)
    if isinstance(value, _Raw):
        return _as_tensor(value.data).view(value.dtype)
    if isinstance(value, _Array):
        return value.data
    if isinstance(value, dict):
        return {name: unpack(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(item) for item in value)
    return value


def borrow(packed: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of a flat dict that was packed, in the very memory of its arrays: for reading only."""
    return {name: unpack(_unmarked(item)) for name, item in packed.items()}


def _unmarked(item: Any) -> Any:
    """The same array or `_Raw` without numpy's mark that it is read-only, which torch would warn about."""
    if isinstance(item, _Raw):
        return _Raw(_unmarked(item.data), item.dtype)
    return np.asarray(_Unmarked(item))


class _Unmarked:
    """A source for numpy: an array in the memory of another."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        # The flag says writable, which is not true of the store's pages: a write would end the process.
        # `self._array` keeps the memory alive.
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _size(packed: object) -> int:
    """Bytes of the arrays and texts in `packed`."""
    if isinstance(packed, np.ndarray):
        return packed.nbytes
    if isinstance(packed, _Array | _Raw):
        return packed.data.nbytes
    if isinstance(packed, dict):
        return sum(_size(item) for item in packed.values())
    if isinstance(packed, list | tuple):
        return sum(_size(item) for item in packed)
    return len(packed) if isinstance(packed, str | bytes) else 0


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # torch warns about read-only memory; an array of a few kilobytes is cheaper to copy than to guard.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
