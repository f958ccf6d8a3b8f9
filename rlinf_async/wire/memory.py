"""Large payloads between processes of one machine, through memory that both of them map.

Ray's object store costs more than the copy: an object is created, borrowed twice and freed, each by calls
between four processes. A memory file (`memfd`) has no name in any folder; the kernel frees it when the last
process that holds it open ends, in whatever way.

Fresh pages cost more than the copy into them, as the kernel clears and maps each. So a file is written again
once no reader maps it. The kernel keeps that count: every mapping holds a shared lock (`flock`) on the file
until its last array is deleted or its process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from io import FileIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.core.failures import PeerError

ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of this number of bytes, as in torch's own memory."""
MADV_POPULATE_READ = 22
"""Of Linux's madvise(2); Python's `mmap` does not name it."""
IDLE_ROUNDS = 8
"""A file is closed after so many idle rounds, each of as many values as the pool has files: a pool would keep
the memory of its fullest moment for ever."""


@cache
def machine() -> str:
    """An identifier of this machine, equal in all of its processes."""
    # Containers of one machine share it, although they may not see each other's processes: there
    # `open_memory` fails.
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Adjoined:
    """Arrays of one shape and type, [...], which become one array, [N, ...], in the memory of `Pickled`.

    Pickled in any other way it would lose its contents.
    """

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self.rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        first = self.rows[0]
        return _whole, (pickle.PickleBuffer(_Apart(self.rows)), first.dtype, (len(self.rows), *first.shape))


class _Apart(bytearray):
    """Has no contents of its own; in a pickle it stands for rows, which lie apart."""

    # Of a type that can be written to: otherwise `pickle` would make the reader's array read-only.
    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self.rows = rows


def _whole(content: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(content, dtype).reshape(shape)


class Pickled:
    """A value in two parts: a pickle without the contents of its arrays, and these contents."""

    def __init__(self, value: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self.parts = [_rows_of(buffer.raw()) for buffer in buffers]
        """The content of each array: contiguous memory, which is written one behind the other."""
        self.lengths = [sum(row.nbytes for row in rows) for rows in self.parts]
        *self.starts, self.size = starts_of(self.lengths)


def _rows_of(content: memoryview) -> list[memoryview]:
    return [row.data for row in content.obj.rows] if isinstance(content.obj, _Apart) else [content]


class MemoryFile:
    """Memory of this process that others can map; it grows to its largest value."""

    def __init__(self) -> None:
        # Closed on exec: a program that this process starts would keep the memory alive.
        self._file = os.memfd_create("rlinf-async", os.MFD_CLOEXEC)
        # The inode tells a reader whether the descriptor is still this file: numbers of processes and of
        # descriptors are reused, and repeat on other machines.
        self._inode = os.fstat(self._file).st_ino
        os.ftruncate(self._file, 1)  # an empty file cannot be mapped
        self._map = mmap.mmap(self._file, 1)

    def write(self, value: Pickled) -> list[Any]:
        """Replace the content by `value`; return its place, which a message carries and `read` resolves."""
        if len(self._map) < value.size:
            # The file keeps its inode: readers of the previous value keep their own mapping.
            self._map.resize(value.size)
        for rows, start in zip(value.parts, value.starts, strict=True):
            ends = accumulate((row.nbytes for row in rows), initial=start)
            for row, (first, end) in zip(rows, pairwise(ends), strict=True):
                # The only copy of the data: the reader maps these pages.
                self._map[first:end] = row
        return [machine(), os.getpid(), self._file, self._inode, value.head, value.lengths]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    def lock(self) -> bool:
        """Keep readers from mapping the file; return False if a reader maps it."""
        return try_lock(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the memory; the kernel frees it when no reader maps it any more."""
        self._map.close()
        os.close(self._file)


class Reuse(Enum):
    """When the memory of a value may be written again, after the block of `MemoryPool.holding`."""

    AT_ONCE = "at once"
    """Readers have copied the value within the block."""
    UNMAPPED = "unmapped"
    """Readers have mapped the value within the block, and keep the mapping as long as they like."""
    NEVER = "never"
    """A late reader must find no value, rather than another one."""


class MemoryPool:
    """The memory files of one process, one for each value that others may read at the same time."""

    def __init__(self, reuse: Reuse = Reuse.AT_ONCE) -> None:
        self._reuse = reuse
        self._files: dict[MemoryFile, int] = {}
        """Files that no block uses, in the order of their return, each with the number of values at that
        time. Readers may still map them."""
        self._open = self._values = 0
        """The numbers of files that are open, and of values so far."""

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield the place of `value` for `read`, valid as long as the block lasts."""
        memory = Pickled(value)
        # Out of the pool during the block: overlapping blocks have a file each.
        file = self._take(memory.size)
        may_be_reused = False
        try:
            place = file.write(memory)
            file.unlock()
            yield place
            may_be_reused = self._reuse is not Reuse.NEVER
        finally:
            if may_be_reused:
                self._files[file] = self._values
            else:
                # If the block raises, a late reader must not find another value in this file.
                self._close(file)

    def _take(self, size: int) -> MemoryFile:
        """Remove from the pool, and return, an unmapped file, if possible of at least `size` bytes."""

        # The smallest file that is large enough comes first, then the largest of the others.
        def order(file: MemoryFile) -> tuple[bool, int]:
            return file.size < size, abs(file.size - size)

        self._values += 1
        # Of files of one size, the one that was returned last: superfluous files then stay idle.
        lockable = (file for file in sorted(reversed(self._files), key=order) if file.lock())
        found = next(lockable, None)
        if found is not None:
            del self._files[found]
        self._close_idle()
        if found is None:
            found = MemoryFile()
            self._open += 1
        return found

    def _close_idle(self) -> None:
        """Close the files that have been idle for `IDLE_ROUNDS`."""
        for file, came_back in list(self._files.items()):
            if self._values - came_back <= IDLE_ROUNDS * self._open:
                return  # the files after this one were returned later
            if file.lock():
                del self._files[file]
                self._close(file)

    def _close(self, file: MemoryFile) -> None:
        file.close()
        self._open -= 1


def read(place: Sequence[Any]) -> Any:
    """Return the value at a place from `MemoryFile.write`. Its arrays are views of that memory.

    Raises:
        PeerError: the writer does not hold the value any more, or this process may not read its memory.
    """
    *file_of, head, lengths = place
    # `mmap` duplicates the descriptor of the same open file: the mapping keeps the lock as long as one of its
    # arrays lives.
    with open_memory(*file_of) as file:
        if not try_lock(file, fcntl.LOCK_SH):
            raise PeerError("the memory of another process is being written again")
        # Copy-on-write: a reader that writes gets pages of its own.
        mapping = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    *starts, _ = starts_of(lengths)
    buffers = [mapping[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    # The head comes from a message of the run's own processes, and is trusted as Ray's messages are.
    return pickle.loads(head, buffers=buffers)


def map_pages(address: int, size: int) -> None:
    """Map the pages of a value that is about to be read whole: that takes two thirds of the time of the page
    faults that it saves.
    """
    start = address - address % mmap.PAGESIZE
    # Linux before 5.14 refuses, and maps them later.
    _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + size - start), MADV_POPULATE_READ)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def try_lock(file: int | FileIO, kind: int) -> bool:
    """Lock a memory file, with `kind` LOCK_EX or LOCK_SH; return False if another lock forbids it.

    The lock belongs to an open file description, not to a process: the writer has one, and each reader opens
    another through /proc.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_memory(where: str, process: int, number: int, inode: int) -> FileIO:
    """Open, for reading, the memory file that is descriptor `number` of `process`, on the machine `where`.

    Raises:
        PeerError: that process does not hold the file any more, or this process may not open it.
    """
    if where != machine():
        raise PeerError(f"process {process} is on another machine")
    try:
        # O_NONBLOCK: the number may be that of a pipe by now, and opening a pipe waits for its other end.
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PeerError(f"cannot read the memory of process {process}: {error.strerror}") from error
    file = FileIO(descriptor)
    # Checked after the open: before it, the number could still become that of another file.
    if os.fstat(descriptor).st_ino != inode:
        file.close()
        raise PeerError(f"process {process} has released the memory of a value that it had sent")
    return file


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Return the offsets at which parts of these lengths begin, and the end of the last one."""
    return [0, *accumulate(-(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for length in lengths)]
