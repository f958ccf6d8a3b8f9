"""Tensors between processes: packed into a message, or left in memory that the reader maps.

Tensors travel as numpy arrays. A small value goes within its message; a large one stays in `ShownMemory`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.core.row_stack import RowStack
from rlinf_async.wire.memory import mapping_of
from rlinf_async.wire.shown_memory import Reader, ShownMemory

INLINE_BYTES = 10_000
"""Values of up to this size travel within a message; larger ones stay in memory that the reader maps."""


@dataclass(frozen=True, slots=True)
class _Array:
    """A numpy array, which `unpack` does not make a tensor."""

    data: np.ndarray


@dataclass(frozen=True, slots=True)
class _Raw:
    """A tensor of a type that numpy lacks, as integers of the same width."""

    data: np.ndarray
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Rows:
    """The packed rows of a stack."""

    rows: list[Any]


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


def seal(value: object) -> bytes:
    """Return `value` as bytes for a message; a process that passes the message on touches no tensor."""
    return pickle.dumps(pack(value), protocol=5)


@contextmanager
def sealed(value: object, memory: ShownMemory, *, inline: bool = True) -> Iterator[bytes | list[Any]]:
    """`seal`, for a message whose reader is done before the block ends: large values stay in `memory`.

    `inline`: small values travel within the message; without it they stay in `memory`, too.
    """
    arrays = pack(value)
    if inline and _size(arrays) <= INLINE_BYTES:
        yield pickle.dumps(arrays, protocol=5)
    else:
        with memory.holding(arrays) as place:
            # Valid in this block only: afterwards the file holds another value, and the reader must have
            # copied.
            yield place


def unseal(payload: bytes) -> Any:
    """The inverse of `seal`."""
    return unpack(pickle.loads(payload))


async def read_sealed(payload: bytes | list[Any], reader: Reader) -> Any:
    """Return the value that was `sealed`; a `PeerError` as the value if its process is gone."""
    try:
        return unseal(payload) if isinstance(payload, bytes) else unpack(await reader.read(*payload))
    except PeerError as error:
        return PeerError(f"the data of a request cannot be read: {error}")


def pack(value: Any) -> Any:
    """Replace every tensor in nested dicts, lists and tuples by an array; leave other values as they are."""
    if isinstance(value, torch.Tensor):
        # No copy of a contiguous CPU tensor: the array shares its memory.
        tensor = value.detach().cpu().contiguous()
        if tensor.dtype in _NUMPY_TYPES:
            return tensor.numpy()
        return _Raw(tensor.view(_SAME_WIDTH[tensor.element_size()]).numpy(), tensor.dtype)
    if isinstance(value, RowStack):
        return _Rows([pack(row) for row in value.rows])
    if isinstance(value, np.ndarray):
        return _Array(value)
    if isinstance(value, dict):
        return {name: pack(item) for name, item in value.items()}
    # By exact type: a named tuple cannot be made of one iterable.
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
    if isinstance(value, _Rows):
        return _unpack_rows(value.rows)
    if isinstance(value, dict):
        return {name: unpack(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(item) for item in value)
    return value


def _unpack_rows(rows: list[Any]) -> torch.Tensor:
    """Return rows as one tensor, without a copy if they are adjacent in one mapping."""
    arrays = [row.data if isinstance(row, _Raw) else row for row in rows]
    first, mapping = arrays[0], mapping_of(arrays[0])
    start = _address(first)
    follow = all(_address(array) == start + index * first.nbytes for index, array in enumerate(arrays))
    # In one mapping: two mappings that are adjacent by chance may be released one by one.
    if mapping is None or not follow or any(mapping_of(array) is not mapping for array in arrays):
        return torch.stack([unpack(row) for row in rows])
    shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
    whole = np.lib.stride_tricks.as_strided(first, shape, strides)
    return unpack(_Raw(whole, rows[0].dtype) if isinstance(rows[0], _Raw) else whole)


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _size(arrays: object) -> int:
    """Bytes of the arrays and texts in `arrays`."""
    if isinstance(arrays, np.ndarray):
        return arrays.nbytes
    if isinstance(arrays, _Array | _Raw):
        return arrays.data.nbytes
    if isinstance(arrays, _Rows):
        return _size(arrays.rows)
    if isinstance(arrays, dict):
        return sum(_size(item) for item in arrays.values())
    if isinstance(arrays, list | tuple):
        return sum(_size(item) for item in arrays)
    return len(arrays) if isinstance(arrays, str | bytes) else 0


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # torch warns about read-only memory; an array of a few kilobytes is cheaper to copy than to guard.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
