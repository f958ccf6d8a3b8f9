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
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from rlinf_async.core.failures import PeerError

ALIGNMENT = 64
"""Arrays begin at multiples of so many bytes, as in torch's own memory."""


class MemoryFile:
    """Memory of this process that others can map; it grows to the largest value that it has held."""

    def __init__(self) -> None:
        self._file = os.memfd_create("rlinf-async", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None

    def write(self, value: Any) -> list[Any]:
        """Hold `value`, until the next one; returns where `read` finds it, for a message."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        lengths = [part.nbytes for part in parts]
        ends = list(accumulate(_rounded(length) for length in lengths))
        target = self._holding(ends[-1] if ends else 0)
        for part, start in zip(parts, [0, *ends], strict=False):
            target[start : start + part.nbytes] = part
        return [os.getpid(), self._file, os.fstat(self._file).st_ino, head, lengths]

    def close(self) -> None:
        """Give the memory back, once those who map it have done so too."""
        if self._map is not None:
            self._map.close()
        os.close(self._file)

    def _holding(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if self._map is not None:
                self._map.close()
            os.ftruncate(self._file, max(size, 1))
            self._map = mmap.mmap(self._file, max(size, 1))
        return self._map


class MemoryPool:
    """Memory files of one process, for as many values as others have to read at a time."""

    def __init__(self) -> None:
        self._idle: list[MemoryFile] = []

    @contextmanager
    def holding(self, value: Any) -> Iterator[list[Any]]:
        """Where `read` finds `value`, as long as the block lasts."""
        file = self._idle.pop() if self._idle else MemoryFile()
        try:
            yield file.write(value)
        except BaseException:
            file.close()  # somebody may be about to read it, and is not to find another value there
            raise
        self._idle.append(file)


def read(place: Sequence[Any]) -> Any:
    """What a process of this machine holds. Arrays stay in its memory: copy what is to outlive its block.

    Raises:
        PeerError: it does not hold it any more, or this process may not look into it.
    """
    process, number, inode, head, lengths = place
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PeerError(f"cannot read what process {process} holds: {error.strerror}") from error
    try:
        if os.fstat(file).st_ino != inode:
            raise PeerError(f"process {process} does not hold any more what it has sent")
        # Whoever writes to it writes to a copy.
        mapped = memoryview(mmap.mmap(file, os.fstat(file).st_size, access=mmap.ACCESS_COPY))
    finally:
        os.close(file)
    starts = [0, *accumulate(_rounded(length) for length in lengths)]
    return pickle.loads(
        head,
        buffers=[mapped[start : start + length] for start, length in zip(starts, lengths, strict=False)],
    )


def readable(place: Sequence[Any]) -> bool:
    """Whether this process can `read` it."""
    try:
        read(place)
    except PeerError:
        return False
    return True


def _rounded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
