"""Files in an untrusted directory, opened and written without following links or waiting.

A run directory may come from another person, be damaged, or be in a folder that others can write to. A name
in it may be a link to another file, a pipe that blocks its reader for ever, or a file that fills all memory.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE_MODE = 0o600
"""The mode of files that a run writes: no other account reads them unless the owner allows it."""
COMMON_MODE = 0o666
"""The mode of files that other accounts may read, before the umask."""
PRIVATE_DIRECTORY = 0o700
COMMON_DIRECTORY = 0o777


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_MODE) -> Iterator[int]:
    """Open a regular file; yield its descriptor.

    Raises:
        OSError: it is a link, not a regular file, or cannot be opened.
    """
    file = open_regular(path, flags, mode)
    try:
        yield file
    finally:
        os.close(file)


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_MODE) -> int:
    """Open a regular file and return its descriptor; the caller closes it.

    Raises:
        OSError: it is a link, not a regular file, or cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait before its type could be checked.
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
    """Append to a file. A missing file is made, `private` or with the mode of the umask.

    Raises:
        OSError: it is a link, not a regular file, or the disk is full.
    """
    mode = PRIVATE_MODE if private else COMMON_MODE
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode) as file:
        _write(file, content)


def write_whole(
    path: Path, content: bytes | memoryview, *, private: bool = True, flush: bool = False
) -> None:
    """Replace the content of a file at once: a reader sees the old file or the new one, never a part.

    A file that is not `private` gets the mode of the umask. With `flush` it is on the disk on return.

    Raises:
        OSError: the path is not a regular file (a link, for example), or cannot be written; it is unchanged.
    """
    with suppress(FileNotFoundError):
        mode_of_file = os.lstat(path).st_mode
        if stat.S_ISLNK(mode_of_file):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
        if not stat.S_ISREG(mode_of_file):
            raise OSError(errno.EINVAL, "it is no file", str(path))
    # In the same folder, because a rename across file systems is not atomic. The prefix is cut because names
    # have at most 255 bytes.
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
        # BaseException: an interrupt must leave no half file behind either.
        with suppress(OSError):
            os.unlink(half)
        raise
    if flush:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk.

    Raises:
        OSError: it cannot be opened, or flushing fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, private: bool = True) -> None:
    """Make a directory, `private` or with the mode of the umask, and missing parents with the mode of the
    umask. Their names are on the disk on return.

    Raises:
        OSError: it cannot be made, or a link has its name.
    """
    for directory in reversed([parent for parent in path.parents if not parent.exists()]):
        _make_one(directory, COMMON_DIRECTORY)
    _make_one(path, PRIVATE_DIRECTORY if private else COMMON_DIRECTORY)


def _make_one(directory: Path, mode: int) -> None:
    try:
        directory.mkdir(mode)
    except FileExistsError:
        if not directory.is_dir():
            raise
        return
    try:
        # Flushed files are lost if the name of their directory is not on the disk.
        with suppress(PermissionError):  # the parent may be writable but not readable
            sync(directory.parent)
    except OSError:
        # The next caller would find the directory, and would not flush its name.
        with suppress(OSError):
            directory.rmdir()
        raise


def discard(descriptor: int) -> None:
    """Have a descriptor, as of an output without a reader, take all that is written, and keep nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _write(file: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        # A nearly full disk may write only a part.
        view = view[os.write(file, view) :]


def _umask() -> int:
    """Return the umask of this process, from /proc, as `os.umask` can only tell it by changing it."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    # Unknown: assume the strictest.
    return 0o077


def _in_words(error: OSError, path: Path) -> OSError:
    if error.errno == errno.ELOOP:
        return OSError(errno.ELOOP, "it is a symbolic link", str(path))
    if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
        return OSError(errno.ENXIO, "it is no file", str(path))
    return error
