"""Large payloads between processes of one machine, through memory that both of them map.

Ray's object store asks more of them than the bytes: an object is created, borrowed twice and freed, each
by calls between four processes. A memory file has no name in any folder and belongs to the process that
holds it open; it is gone with that process, however it ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlinf_async.core.failures import PeerError

ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of this number of bytes, as in torch's own memory."""


@cache
def machine() -> str:
    """A name that the processes of one machine share, and no others."""
    # Containers of one machine have the same, and may not see each other's processes: `open_memory` fails
    # there.
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class MemoryFile:
    """Memory of this process that others can map; it grows to the largest value that it has held."""

    def __init__(self) -> None:
        # Closed on exec: a program that this process starts would keep the memory alive.
        self._file = os.memfd_create("rlinf-async", os.MFD_CLOEXEC)
        os.ftruncate(self._file, 1)  # nothing cannot be mapped
        self._map = mmap.mmap(self._file, 1)

    def write(self, value: object) -> list[Any]:
        """Hold `value`, until the next one; returns where `read` finds it, for a message."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        lengths = [part.nbytes for part in parts]
        *starts, size = starts_of(lengths)
        if len(self._map) < size:
            # The file grows and keeps its inode: readers of the value before still see their own mapping.
            self._map.resize(size)
        for part, start in zip(parts, starts, strict=True):
            # The one copy of the data on its way; the reader maps these pages.
            self._map[start : start + part.nbytes] = part
        # The inode tells a reader whether the descriptor still is this file: numbers of processes and
        # descriptors are given again, and other machines have the same ones.
        return [machine(), os.getpid(), self._file, os.fstat(self._file).st_ino, head, lengths]

    def close(self) -> None:
        """Give the memory back, once those who map it have done so too."""
        self._map.close()
        os.close(self._file)


class MemoryPool:
    """Memory files of one process, for as many values as others have to read at a time."""

    def __init__(self, *, reused: bool = True) -> None:
        """`reused`: readers have copied when the block is left; else what they have mapped is theirs."""
        self._reused = reused
        self._idle: list[MemoryFile] = []

    @contextmanager
    def holding(self, value: object) -> Iterator[list[Any]]:
        """Yield the place where `read` finds `value`, as long as the block lasts."""
        # Taken out of the pool while somebody reads it: blocks that overlap have a file each.
        file = self._idle.pop() if self._idle else MemoryFile()
        with ExitStack() as given_up:
            # A reader may be about to read this file, and must not find another value there.
            given_up.callback(file.close)
            yield file.write(value)
            if self._reused:
                given_up.pop_all()
                self._idle.append(file)


def read(place: Sequence[Any]) -> Any:
    """The value that `MemoryFile.write` has placed. Arrays stay in that memory: copy what outlives the block.

    Raises:
        PeerError: it does not hold it any more, or this process may not look into it.
    """
    *file_of, head, lengths = place
    # The mapping outlives the file, as it has a descriptor of its own.
    with open_memory(*file_of) as file:
        # Whoever writes to it writes to a copy.
        mapping = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    *starts, _ = starts_of(lengths)
    buffers = [mapping[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    # The head comes from a message of the run's own processes, and is trusted as Ray's messages are.
    return pickle.loads(head, buffers=buffers)


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
