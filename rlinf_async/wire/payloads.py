"""Tensors between processes: packed into a message, or left in memory that the reader maps.

Tensors travel as numpy arrays. A small value goes within its message; a large one stays in `ShownMemory`.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.core.row_stack import SMALLEST_ROW_BYTES, RowStack
from rlinf_async.wire.memory import INLINE_BYTES, Adjoined, map_pages, read
from rlinf_async.wire.shown_memory import Reader, ShownMemory

SMALLEST_MAPPED_BYTES = 2**16
"""The kernel maps so many bytes at the first look at one of them; to map less beforehand saves nothing."""


@dataclass(frozen=True)
class _Array:
    """A numpy array, which `unpack` does not make a tensor."""

    data: np.ndarray


@dataclass(frozen=True)
class _Raw:
    """A tensor of a type that numpy lacks, as integers of the same width."""

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


def seal(value: object) -> bytes:
    """Return `value` as bytes for a message; a process that passes the message on touches no tensor."""
    return pickle.dumps(pack(value), protocol=5)


@contextmanager
def sealed(value: object, memory: ShownMemory, *, inline: bool = True) -> Iterator[bytes | list[Any]]:
    """`seal`, for a message that is read before the block ends: large values stay in `memory`.

    `inline`: small values travel within the message; without it they stay in `memory`, too.
    """
    if inline and _size(value) <= INLINE_BYTES:
        yield seal(value)
    else:
        with memory.holding(pack(value, adjoin=Adjoined)) as place:
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


_OUT_OF_REACH = object()
"""In the place of a value that must be fetched."""


async def read_each_sealed(payloads: Sequence[bytes | list[Any]], reader: Reader) -> list[Any]:
    """`read_sealed` for several payloads: those within reach at once, and without a task for each."""
    values = [_within_reach(payload) for payload in payloads]
    far = [number for number, value in enumerate(values) if value is _OUT_OF_REACH]
    if far:
        late = await asyncio.gather(*(read_sealed(payloads[number], reader) for number in far))
        for number, value in zip(far, late, strict=True):
            values[number] = value
    return values


def _within_reach(payload: bytes | list[Any]) -> Any:
    """Return the value of a message, or of memory that this process can map; else `_OUT_OF_REACH`."""
    if isinstance(payload, bytes):
        return unseal(payload)
    with suppress(PeerError):
        return unpack(read(payload[0]))
    return _OUT_OF_REACH


def map_ahead(value: object) -> None:
    """Map the pages of the large tensors in a value, which is about to be read whole."""
    if isinstance(value, torch.Tensor):
        if value.nbytes >= SMALLEST_MAPPED_BYTES:
            map_pages(value.data_ptr(), value.nbytes)
    elif isinstance(value, dict):
        for item in value.values():
            map_ahead(item)
    elif isinstance(value, list | tuple):
        for item in value:
            map_ahead(item)


def pack(value: Any, *, adjoin: Callable[[list[np.ndarray]], Any] = np.stack) -> Any:
    """Replace every tensor in nested dicts, lists and tuples by an array; leave other values as they are.

    `adjoin` makes an array of the rows of a `RowStack`; `Adjoined` makes none before they are written.
    """
    if isinstance(value, torch.Tensor) and _has_rows_apart(value):
        value = RowStack(value.unbind())
    if isinstance(value, torch.Tensor):
        array = _as_array(value)
        return array if value.dtype in _NUMPY_TYPES else _Raw(array, value.dtype)
    if isinstance(value, RowStack):
        array, dtype = adjoin([_as_array(row) for row in value.rows]), value.rows[0].dtype
        return array if dtype in _NUMPY_TYPES else _Raw(array, dtype)
    if isinstance(value, np.ndarray):
        return _Array(value)
    if isinstance(value, dict):
        return {name: pack(item, adjoin=adjoin) for name, item in value.items()}
    # By exact type: a named tuple cannot be made of one iterable.
    if type(value) in (list, tuple):
        return type(value)(pack(item, adjoin=adjoin) for item in value)
    return value


def _has_rows_apart(tensor: torch.Tensor) -> bool:
    """Return True for a tensor with large rows that do not lie one behind the other: those of some
    environments, cut out of a rollout. To write them one by one saves a copy.
    """
    if tensor.is_contiguous() or not tensor.is_cpu or not len(tensor):
        return False
    row = tensor[0]
    return row.nbytes >= SMALLEST_ROW_BYTES and row.is_contiguous()


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a contiguous array, of integers if numpy lacks the type; it shares the memory of a contiguous
    tensor on the CPU.
    """
    # Only what is needed: for a rollout's rows these calls took half as long as their copies.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype not in _NUMPY_TYPES:
        tensor = tensor.view(_SAME_WIDTH[tensor.element_size()])
    array: np.ndarray = tensor.numpy()
    return array


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


def _size(value: object) -> int:
    """Bytes of the tensors, arrays and texts in `value`."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, RowStack):
        return sum(row.nbytes for row in value.rows)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 0


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # torch warns about read-only memory; an array of a few kilobytes is cheaper to copy than to guard.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
