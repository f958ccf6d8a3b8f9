"""Large payloads between processes of one machine, through memory that both of them map.

Ray's object store costs more than the copy: an object is created, borrowed twice and freed, each by calls
between four processes. A memory file (`memfd`) has no name in any folder; the kernel frees it when the last
process that holds it open ends, in whatever way.

Fresh pages cost more than the copy into them, as the kernel clears and maps each. So a file is written again
once no reader maps it. The kernel keeps that count: every mapping holds a shared lock (`flock`) on the file
until its last array is deleted or its process ends.

A value is copied into a file, or it is there already: a pool lends memory of its files (`MemoryPool.lend`),
and arrays in lent memory are not copied again, however many values have them.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pickle
import weakref
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from io import FileIO
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.core.failures import PeerError

ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of this number of bytes, as in torch's own memory."""
MADV_POPULATE_READ = 22
"""Of Linux's madvise(2); Python's `mmap` does not name it."""
SMALLEST_LENT_BYTES = 4096
"""Smaller arrays are copied, wherever they are: that costs less than to tell a reader about their place."""
INLINE_BYTES = 10_000
"""Values of up to this size travel within a message; larger ones stay in memory that the reader maps. So do
arrays beside those in lent memory."""
IN_MESSAGE = -1
"""The number of the file of a span whose contents are in its message."""
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
        """The content of each array, as pieces of contiguous memory."""
        self.lent = [_lent(rows) for rows in self.parts]
        """The file and the offset of each array in lent memory; None for an array to be written."""
        self.lengths = [sum(row.nbytes for row in rows) for rows in self.parts]
        written = [0 if lent else length for lent, length in zip(self.lent, self.lengths, strict=True)]
        *self.starts, self.size = starts_of(written)
        arrays = zip(self.parts, self.starts, self.lent, strict=True)
        self.rest = [(rows, start) for rows, start, lent in arrays if lent is None]
        """The arrays to be written, one behind the other, each with its offset."""

    @property
    def fits_in_a_message(self) -> bool:
        """True if nothing, or little, is to be written beside arrays in lent memory."""
        return any(self.lent) and self.size <= INLINE_BYTES

    def place(self, file: MemoryFile | None) -> list[Any]:
        """Return the place of the value, which a message carries and `read` resolves.

        Args:
            file: the file that has `rest`; None to have it in the place itself.
        """
        files: dict[tuple[int, int], int] = {}
        spans: list[tuple[int, Any, int]] = []
        arrays = zip(self.parts, self.lent, self.starts, self.lengths, strict=True)
        for rows, lent, written_at, length in arrays:
            holder, start = lent or (file, written_at)
            if holder is None:
                # Of a type that can be written to, as `_Apart`.
                spans.append((IN_MESSAGE, bytearray().join(rows), length))
            else:
                spans.append((files.setdefault(holder.name, len(files)), start, length))
        if file is not None:
            files.setdefault(file.name, len(files))  # also without contents, so that its end is seen
        return [machine(), os.getpid(), list(files), self.head, spans]


def _rows_of(content: memoryview) -> list[memoryview]:
    return [row.data for row in content.obj.rows] if isinstance(content.obj, _Apart) else [content]


def _lent(rows: Sequence[memoryview]) -> tuple[MemoryFile, int] | None:
    """Return the file, and the offset in it, of an array in lent memory; None for other arrays."""
    if not _lent_files or len(rows) != 1 or rows[0].nbytes < SMALLEST_LENT_BYTES:
        return None
    start = _address(rows[0])
    file = _lent_files[max(0, bisect_right(_lent_files, start, key=_address_of) - 1)]
    offset = start - file.address
    return (file, offset) if offset >= 0 and offset + rows[0].nbytes <= file.size else None


def _address(content: memoryview | mmap.mmap) -> int:
    return int(np.frombuffer(content, np.uint8).ctypes.data)


_address_of = attrgetter("address")
_lent_files: list[MemoryFile] = []
"""The files of this process whose memory is lent, or was last used so, in the order of their addresses."""


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
        self.address = 0
        """Of the memory in this process, while it is in `_lent_files`; else 0."""

    def write(self, value: Pickled) -> list[Any]:
        """Replace the content by `value`; return its place."""
        self._grow(value.size)
        for rows, start in value.rest:
            ends = accumulate((row.nbytes for row in rows), initial=start)
            for row, (first, end) in zip(rows, pairwise(ends), strict=True):
                # The only copy of the data: the reader maps these pages.
                self._map[first:end] = row
        return value.place(self)

    def lend(self, size: int) -> np.ndarray:
        """Return memory of the file, [size] uint8; the file must not be written as long as it is used."""
        self._grow(size)
        if not self.address:
            self.address = _address(self._map)
            insort(_lent_files, self, key=_address_of)
        return np.frombuffer(self._map, np.uint8, size)

    def _grow(self, size: int) -> None:
        if len(self._map) < size:
            self._is_lent_no_more()  # its address changes
            # The file keeps its inode: readers of the previous value keep their own mapping.
            self._map.resize(size)

    def _is_lent_no_more(self) -> None:
        if self.address:
            _lent_files.remove(self)
            self.address = 0

    @property
    def name(self) -> tuple[int, int]:
        """The descriptor in this process, and the inode."""
        return self._file, self._inode

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
        self._is_lent_no_more()
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
        self._lent: list[tuple[MemoryFile, weakref.ref[np.ndarray]]] = []
        """Files whose memory is lent, each with the array that all tensors in it keep alive."""
        self._open = self._values = 0
        """The numbers of files that are open, and of values so far."""

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield the place of `value` for `read`, valid as long as the block lasts."""
        memory = Pickled(value)
        if memory.fits_in_a_message:
            yield memory.place(None)
            return
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

    def lend(self, size: int) -> np.ndarray:
        """Return memory, [size] uint8, its values undefined, as long as the returned array lives.

        numpy's views of an array do not keep it alive, and torch's tensors in it do.
        """
        file = self._take(size)
        memory = file.lend(size)
        file.unlock()
        self._lent.append((file, weakref.ref(memory)))
        return memory

    def _take(self, size: int) -> MemoryFile:
        """Remove from the pool, and return, an unmapped file, if possible of at least `size` bytes."""

        # The smallest file that is large enough comes first, then the largest of the others.
        def order(file: MemoryFile) -> tuple[bool, int]:
            return file.size < size, abs(file.size - size)

        self._values += 1
        for entry in [entry for entry in self._lent if entry[1]() is None]:
            self._lent.remove(entry)
            self._files[entry[0]] = self._values
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
    """Return the value at a place from `Pickled.place`. Its arrays are views of that memory.

    Raises:
        PeerError: the writer does not hold the value any more, or this process may not read its memory.
    """
    where, process, files, head, spans = place
    mapped = [
        _mapped(where, process, name, [span[1:] for span in spans if span[0] == number])
        for number, name in enumerate(files)
    ]
    buffers: list[memoryview | bytearray] = []
    for number, start, length in spans:
        if number == IN_MESSAGE:
            buffers.append(start)
        else:
            memory, first = mapped[number]
            buffers.append(memory[start - first : start - first + length])
    # The head comes from a message of the run's own processes, and is trusted as Ray's messages are.
    return pickle.loads(head, buffers=buffers)


def _mapped(
    where: str, process: int, name: tuple[int, int], spans: Sequence[tuple[int, int]]
) -> tuple[memoryview, int]:
    """Map the pages of a file that have `spans`, each a start and a length; return their offset as well."""
    # `mmap` duplicates the descriptor of the same open file: the mapping keeps the lock as long as one of its
    # arrays lives.
    with open_memory(where, process, *name) as file:
        if not try_lock(file, fcntl.LOCK_SH):
            raise PeerError("the memory of another process is being written again")
        first = min((start for start, _ in spans), default=0)
        first -= first % mmap.ALLOCATIONGRANULARITY
        end = max((start + length for start, length in spans), default=0)
        # Copy-on-write: a reader that writes gets pages of its own.
        pages = mmap.mmap(file.fileno(), max(1, end - first), access=mmap.ACCESS_COPY, offset=first)
    return memoryview(pages), first


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
