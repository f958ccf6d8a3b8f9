"""A file of lines that several processes append to, and that does not grow for ever."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlinf_async.observe.files import open_regular, read_regular, write_whole

MAX_FILE_BYTES = 4 << 20
"""Bytes of a file. Older lines lie in a second file of that size, and lines that are older still are gone."""
MAX_READ_BYTES = 64 << 20
"""Bytes that are read of a file at most: no file that a run has written is so long."""

LOCK_TRIES = 100
LOCK_PAUSE_S = 0.01
"""Tries to take a lock, and the seconds between two of them: a second in all."""


def older_file(path: Path) -> Path:
    """The file with the older lines."""
    return path.with_suffix(f".before{path.suffix}")


def append(path: Path, line: bytes, *, header: Callable[[], bytes], limit: int = MAX_FILE_BYTES) -> None:
    """Append a line, in one write that processes may share.

    A file that would be longer than `limit` with it takes the place of the one with the older lines first.
    The new one begins with the line that `header` gives, which is called while both old ones are there.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    moved = False
    while True:
        file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            _lock(file)
            if not _is(file, path):
                continue  # somebody has moved it meanwhile
            if not moved and os.fstat(file).st_size + len(line) > limit:
                _move(path, header())
                moved = True
                continue
            os.write(file, line)
            return
        finally:
            os.close(file)


def read_lines(path: Path) -> list[str]:
    """All lines that are left, the oldest first; none where there is no file."""
    return lines_of(older_file(path)) + lines_of(path)


def lines_of(path: Path) -> list[str]:
    """The lines of one of the two files; none if it is not there, or is no such file."""
    with suppress(OSError):
        return read_regular(path, limit=MAX_READ_BYTES).decode(errors="replace").splitlines()
    return []


class NewLines:
    """Reads the lines that are added to such a file from now on, once each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read, self._file = 0, -1

    def read(self) -> bytes:
        """Whole lines since the last call; one that is still being written is left for the next."""
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                new = b""
                number, size = os.fstat(file.fileno()).st_ino, file.seek(0, os.SEEK_END)
                if number != self._file or size < self._read:  # another has taken its place
                    new = self._rest()
                    self._read, self._file = 0, number
                file.seek(self._read)
                text, end, unfinished = file.read().rpartition(b"\n")
                self._read = file.tell() - len(unfinished)
                return new + text + end
        except OSError:
            return b""

    def _rest(self) -> bytes:
        """Return the lines that were added before the file was moved, if it was."""
        with suppress(OSError), os.fdopen(open_regular(older_file(self._path)), "rb") as file:
            if self._read and file.seek(0, os.SEEK_END) >= self._read:
                file.seek(self._read)
                return file.read()
        return b""


def _lock(file: int) -> None:
    """Keep others from moving the file, if that can be had soon: who has it may have been stopped.

    Without it, or where there are no locks, a line may be lost if another process moves the file just then.
    """
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        except OSError:
            return
        else:
            return


def _is(file: int, path: Path) -> bool:
    with suppress(OSError):
        return os.fstat(file).st_ino == path.stat().st_ino
    return False


def _move(path: Path, header: bytes) -> None:
    """In two renames, so that there is always a file of each name."""
    write_whole(older_file(path), read_regular(path, limit=MAX_READ_BYTES))
    write_whole(path, header)
