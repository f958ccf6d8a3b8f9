"""Reads files in an untrusted directory; see `files`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rlinf_async.observe.files import open_regular

MAX_NAMES = 10_000
"""The most names that are read of one directory; a run has some dozens."""


def read_regular(path: Path, *, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is a link, not a regular file, too large, or cannot be read; `strerror` gives the reason.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        # A file that grows is read up to its size when it was opened. `read` reserves the memory that it is
        # asked for, so ask for no more than that.
        return reader.read(min(limit, size) + 1)[:size]


def lines_in(path: Path, *, limit: int, longest: int) -> Iterator[bytes]:
    """Yield the lines of a file of at most `limit` bytes, without line ends; lines longer than `longest`
    bytes are left out. At most two lines of that length are in memory.

    Raises:
        OSError: as `read_regular`.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        cut = False
        # Up to the first size: a file that grows while it is read would have no end.
        while reader.tell() < size and (line := reader.readline(longest + 1)):
            whole = line.endswith(b"\n") or len(line) <= longest
            if whole and not cut:
                yield line.rstrip(b"\n")
            cut = not whole


@contextmanager
def opened_to_read(path: Path, *, limit: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file of at most `limit` bytes; yield a reader, and the size in bytes at opening.

    Raises:
        OSError: as `read_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as reader:
        size = os.fstat(reader.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        yield reader, size


def read_named(path: Path, *, limit: int) -> bytes:
    """`read_regular` for a file that the user has named; links are followed.

    Raises:
        OSError: as `read_regular`.
    """
    return read_regular(Path(os.path.realpath(path)), limit=limit)


def names_in(directory: Path, suffix: str) -> list[Path]:
    """Return the regular files in a directory that end in `suffix`, sorted; none if it is no directory, or a
    link.

    Raises:
        OSError: the directory cannot be read, or has more than `MAX_NAMES` names.
    """
    if directory.is_symlink() or not directory.is_dir():
        return []
    paths: list[Path] = []
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == MAX_NAMES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_NAMES:,} names", str(directory))
            if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                paths.append(Path(entry.path))
    return sorted(paths)
