"""Memory files of other processes that stay mapped from one value to the next.

To map the pages of a large value, and to release them, takes nearly as long as to copy the value. An env
worker writes its rollouts into the same files again and again, so a learner rank maps each file once.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.core.failures import PeerError
from rlinf_async.wire.memory import open_locked, open_memory, read, starts_of, unpickled

SMALLEST_KEPT_BYTES = 2**20
"""Smaller values are mapped by themselves: a kept mapping takes a file descriptor, and would save little."""
PAGES = Path("/proc/self/pagemap")
"""Eight bytes for each page of this process's addresses."""
PRESENT, SWAPPED, SHARED = (np.uint64(1 << bit) for bit in (63, 62, 61))

FileKey = tuple[str, int, int, int]
"""The arguments of `open_memory`."""


class KeptMappings:
    """Reads values as `memory.read` does, and keeps the mappings of large ones for later values.

    A kept mapping has no lock. Each value has a lock of its own until its last array is gone; only then the
    writer puts another value into the same pages. The pages are copied on write, as in `memory.read`. A page
    that was written to would hide the next value, so its mapping is not used again.
    """

    def __init__(self) -> None:
        self._mappings: dict[FileKey, mmap.mmap] = {}

    def read(self, place: Sequence[Any]) -> Any:
        """Return the value at a place from `MemoryFile.write`. Its arrays are views of that memory.

        Raises:
            PeerError: as `memory.read`.
        """
        where, process, number, inode, head, lengths = place
        key, size = (where, process, number, inode), starts_of(lengths)[-1]
        if size < SMALLEST_KEPT_BYTES:
            return read(place)
        with open_locked(*key) as file:
            # Any mapping of the open file keeps its lock. Nobody looks at this page.
            lock = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        content = np.frombuffer(self._mapping(key, size), np.uint8).view(_Lent)
        content.lock = lock
        return unpickled(head, content.data, lengths)

    def let_go(self) -> None:
        """Forget the files that their processes have closed, and those of processes that have died."""
        self._mappings = {key: mapping for key, mapping in self._mappings.items() if _is_open(key)}

    def _mapping(self, key: FileKey, size: int) -> mmap.mmap:
        """Return a mapping of at least `size` bytes of a file, without own pages of this process."""
        mapping = self._mappings.get(key)
        if mapping is None or len(mapping) < size or _has_own_pages(mapping, size):
            # Opened once more: a mapping of the locked file would keep that lock.
            with open_memory(*key) as file:
                mapping = self._mappings[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return mapping


class _Lent(np.ndarray):
    """The bytes of a kept mapping, with the lock of their value: all arrays of these bytes keep both."""

    lock: mmap.mmap


def _has_own_pages(mapping: mmap.mmap, size: int) -> bool:
    """Has this process written to the first `size` bytes? True if the kernel does not tell."""
    first = np.frombuffer(mapping, np.uint8).ctypes.data // mmap.PAGESIZE
    try:
        with PAGES.open("rb", buffering=0) as pages:
            pages.seek(8 * first)
            found = np.frombuffer(pages.read(8 * -(-size // mmap.PAGESIZE)), np.uint64)
    except OSError:
        return True
    in_use = found & (PRESENT | SWAPPED) != 0
    return bool((in_use & (found & SHARED == 0)).any())


def _is_open(key: FileKey) -> bool:
    try:
        open_memory(*key).close()
    except PeerError:
        return False
    return True
