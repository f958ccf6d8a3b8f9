"""Files in a place that others may have prepared: read and written without following links or waiting.

A run directory may come from somebody else, be damaged, or lie in a folder where others can write. A name in
it may be a link to another file, a pipe at which a reader waits for ever, or a file that fills all memory.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE = 0o600
"""The mode of files that a run writes: no other account reads them unless the owner allows it."""
COMMON_MODE = 0o666
"""The mode of files that are for others, too, less what the umask takes."""
PRIVATE_DIRECTORY = 0o700
COMMON_DIRECTORY = 0o777
MAX_NAMES = 10_000
"""In one directory; a run has some dozens."""


def read_regular(path: Path, *, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is a link, no file, too large, or cannot be read; `strerror` says so in a few words.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        # One byte more than it had: a file that grows is read as far as it went when it was measured. What
        # `read` is asked for it reserves, however little there is.
        return reader.read(min(limit, size) + 1)[:size]


def lines_in(path: Path, *, limit: int, longest: int) -> Iterator[bytes]:
    """The lines of a file of at most `limit` bytes, one at a time, without their ends; a line of more than
    `longest` bytes is left out. No more than two such lines are in memory.

    Raises:
        OSError: as `read_regular`.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        cut = False
        # A file that grows while it is read would have no end.
        while reader.tell() < size and (line := reader.readline(longest + 1)):
            whole = line.endswith(b"\n") or len(line) <= longest
            if whole and not cut:
                yield line.rstrip(b"\n")
            cut = not whole


@contextmanager
def opened_to_read(path: Path, *, limit: int) -> Iterator[tuple[BinaryIO, int]]:
    """A reader of a file of at most `limit` bytes, and its size in bytes when it was opened.

    Raises:
        OSError: as `read_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as reader:
        size = os.fstat(reader.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        yield reader, size


def read_named(path: Path, *, limit: int) -> bytes:
    """As `read_regular`, of a file that the user has named, who may have done so by a link.

    Raises:
        OSError: as `read_regular`.
    """
    return read_regular(Path(os.path.realpath(path)), limit=limit)


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_MODE) -> Iterator[int]:
    """A file by its descriptor, as `os.open` gives it, if it is one, and no link.

    Raises:
        OSError: it is a link or no file, or cannot be opened.
    """
    file = open_regular(path, flags, mode)
    try:
        yield file
    finally:
        os.close(file)


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_MODE) -> int:
    """The descriptor of a file that is one, and no link; who calls this closes it.

    Raises:
        OSError: it is a link or no file, or cannot be opened.
    """
    try:
        # Without O_NONBLOCK a pipe would be waited for before anybody could see that it is one.
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        raise _in_words(error, path) from error
    except ValueError as error:  # a zero in the name
        raise OSError(errno.EINVAL, "it has no name of a file", str(path)) from error
    mode_of_file = os.fstat(file).st_mode
    if stat.S_ISREG(mode_of_file):
        return file
    os.close(file)
    if stat.S_ISDIR(mode_of_file):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no file", str(path))


def append(path: Path, content: bytes, *, private: bool = True) -> None:
    """Add to the end of a file, which is made, `private` or with the mode of the umask, if it is not there.

    Raises:
        OSError: it is a link or no file, or the disk is full.
    """
    mode = PRIVATE_MODE if private else COMMON_MODE
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode) as file:
        _write(file, content)


def write_whole(
    path: Path, content: bytes | memoryview, *, private: bool = True, flush: bool = False
) -> None:
    """Give a file this content in one move: a reader sees a whole file, the old one or the new one.

    A file that is not `private` has the mode that the umask gives. With `flush` it is on the disk on return.

    Raises:
        OSError: the path is no regular file (a link, say), or it cannot be written; it is then unchanged.
    """
    with suppress(FileNotFoundError):
        mode_of_file = os.lstat(path).st_mode
        if stat.S_ISLNK(mode_of_file):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
        if not stat.S_ISREG(mode_of_file):
            raise OSError(errno.EINVAL, "it is no file", str(path))
    # In the same folder, as a move to another file system is not one step; cut, as names are at most 255
    # bytes.
    file, half = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".half", dir=path.parent)
    try:
        try:
            _write(file, content)
            if not private:
                os.fchmod(file, COMMON_MODE & ~_umask())
            if flush:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(half, path)
    except BaseException:
        # An interrupt, too, leaves no half file behind.
        with suppress(OSError):
            os.unlink(half)
        raise
    if flush:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    Raises:
        OSError: it cannot be opened, or the disk does not write.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, private: bool = True) -> None:
    """Make a directory, `private` or with the mode of the umask, and those above it, with the modes that the
    umask gives, if they are missing. Their names are on the disk on return.

    Raises:
        OSError: it cannot be made, or a link has its name.
    """
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(PRIVATE_DIRECTORY if private else COMMON_DIRECTORY, parents=True, exist_ok=True)
    for directory in missing:
        # What is flushed within a directory is lost with its name.
        with suppress(PermissionError):  # it may be written, and not read
            sync(directory.parent)


def names_in(directory: Path, suffix: str) -> list[Path]:
    """The files in a directory whose names end so, in their order; none where it is none, or is a link.

    Links and what is no file are left out.

    Raises:
        OSError: it cannot be read, or has too many names.
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


def _write(file: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        # A disk that is nearly full takes a part of it.
        view = view[os.write(file, view) :]


def _umask() -> int:
    """The umask of this process, which Linux tells without that it has to be changed."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    # Unknown here: the narrowest.
    return 0o077


def _in_words(error: OSError, path: Path) -> OSError:
    if error.errno == errno.ELOOP:
        return OSError(errno.ELOOP, "it is a symbolic link", str(path))
    if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
        return OSError(errno.ENXIO, "it is no file", str(path))
    return error
