"""Large payloads between processes of one machine, through memory that both of them map.

Ray's object store asks more of them than the bytes: an object is created, borrowed twice and freed, each
by calls between four processes. A memory file has no name in any folder and belongs to the processes that
hold it open; it is gone with the last one, however it ends.

Pages of a file that is new cost more than the copy into them, as the kernel clears each and maps it. So files
are written again once no reader maps them.
The kernel knows: every mapping holds a shared lock (`flock`) on the file, until the last array in it is
gone or its process has ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import cache
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.core.failures import PeerError

ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of this number of bytes, as in torch's own memory."""


@cache
def machine() -> str:
    """A name that the processes of one machine share, and no others."""
    # Containers of one machine have the same, and may not see each other's processes: `open_memory` fails
    # there.
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Pickled:
    """A value as it lies in memory: a pickle without the contents of its arrays, and these contents."""

    def __init__(self, value: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self.parts = [buffer.raw() for buffer in buffers]
        self.lengths = [part.nbytes for part in self.parts]
        *self.starts, self.size = starts_of(self.lengths)


class MemoryFile:
    """Memory of this process that others can map; it grows to the largest value that it has held."""

    def __init__(self) -> None:
        # Closed on exec: a program that this process starts would keep the memory alive.
        self._file = os.memfd_create("rlinf-async", os.MFD_CLOEXEC)
        os.ftruncate(self._file, 1)  # nothing cannot be mapped
        self._map = mmap.mmap(self._file, 1)

    def write(self, value: Pickled) -> list[Any]:
        """Hold `value`, until the next one; returns where `read` finds it, for a message."""
        if len(self._map) < value.size:
            # The file grows and keeps its inode: readers of the value before still see their own mapping.
            self._map.resize(value.size)
        for part, start in zip(value.parts, value.starts, strict=True):
            # The one copy of the data on its way; the reader maps these pages.
            self._map[start : start + part.nbytes] = part
        # The inode tells a reader whether the descriptor still is this file: numbers of processes and
        # descriptors are given again, and other machines have the same ones.
        inode = os.fstat(self._file).st_ino
        return [machine(), os.getpid(), self._file, inode, value.head, value.lengths]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    def lock(self) -> bool:
        """Keep readers from mapping the file; return False if one maps it."""
        return try_lock(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the memory back, once those who map it have done so too."""
        self._map.close()
        os.close(self._file)


class Reuse(Enum):
    """When the memory of a value may hold another one, once the block in which it was shown is left."""

    AT_ONCE = "at once"
    """Readers have copied."""
    UNMAPPED = "unmapped"
    """Readers have mapped what they want to read, and keep it as long as they like."""
    NEVER = "never"
    """A reader may come later, and finds nothing."""


class MemoryPool:
    """Memory files of one process, for as many values as others have to read at a time."""

    def __init__(self, reuse: Reuse = Reuse.AT_ONCE) -> None:
        self._reuse = reuse
        self._files: list[MemoryFile] = []
        """Files outside any block; readers may still map them."""

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield the place where `read` finds `value`, as long as the block lasts."""
        memory = Pickled(value)
        # Taken out of the pool while somebody reads it: blocks that overlap have a file each.
        file = self._take(memory.size)
        with ExitStack() as given_up:
            # A reader may be about to read this file, and must not find another value there.
            given_up.callback(file.close)
            place = file.write(memory)
            file.unlock()
            yield place
            if self._reuse is not Reuse.NEVER:
                given_up.pop_all()
                self._files.append(file)

    def _take(self, size: int) -> MemoryFile:
        """Take a file that no reader maps out of the pool: one as large as `size`, if there is one."""

        # The smallest that is large enough, then the largest of the others.
        def order(file: MemoryFile) -> tuple[bool, int]:
            return file.size < size, abs(file.size - size)

        for file in sorted(self._files, key=order):
            if file.lock():
                self._files.remove(file)
                return file
        return MemoryFile()


def read(place: Sequence[Any]) -> Any:
    """The value that `MemoryFile.write` has placed. Arrays stay in that memory: copy what outlives the block.

    Raises:
        PeerError: it does not hold it any more, or this process may not look into it.
    """
    *file_of, head, lengths = place
    # The mapping outlives the file, as it has a descriptor of its own: of the same open file, which keeps the
    # lock as long as an array is in the mapping.
    with open_memory(*file_of) as file:
        if not try_lock(file, fcntl.LOCK_SH):
            raise PeerError("another value is being written to what another process has sent")
        # Whoever writes to it writes to a copy.
        mapping = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    *starts, _ = starts_of(lengths)
    buffers = [mapping[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    # The head comes from a message of the run's own processes, and is trusted as Ray's messages are.
    return pickle.loads(head, buffers=buffers)


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """Return the mapping that an array of `read` lies in; None for an array that is elsewhere."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = getattr(base, "obj", None)
    return mapping if isinstance(mapping, mmap.mmap) else None


def try_lock(file: int | FileIO, kind: int) -> bool:
    """Lock a memory file, exclusively or shared by `fcntl`'s `kind`; return False if others' locks forbid it.

    The lock belongs to an open file, not to a process: the process that writes has the file open, and readers
    open it anew, through /proc.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_memory(where: str, process: int, number: int, inode: int) -> FileIO:
    """Open, for reading, the memory file that is descriptor `number` of `process`, on the machine `where`.

    Raises:
        PeerError: it does not hold it any more, or this process may not look into it.
    """
    if where != machine():
        raise PeerError(f"process {process} is on another machine")
    try:
        # Without waiting: the number may be that of a pipe by now, whose other end nobody opens.
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PeerError(f"cannot read what process {process} holds: {error.strerror}") from error
    file = FileIO(descriptor)
    # Looked at behind the open: before it, the number could still become that of another file.
    if os.fstat(descriptor).st_ino != inode:
        file.close()
        raise PeerError(f"process {process} does not hold any more what it has sent")
    return file


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Return the offsets at which parts of these lengths begin, and the end of the last one."""
    return [0, *accumulate(-(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for length in lengths)]
