"""A directory that one run writes into, for as long as its process lives."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rlinf_async.observe.files import PRIVATE_MODE, make_directory, opened, read_regular

LOCK_FILE = ".lock"

_HELD: dict[Path, FileLock] = {}
"""The claims of this process. The system takes them back when the process ends, however it ends."""


class ClaimedError(ValueError):
    """Another run writes there."""


def claim_directory(directory: Path, *, key: str) -> None:
    """Let no other run write into `directory` while this process lives; claiming again is nothing new.

    The directory is made. `key` is that of the config which names it.

    Raises:
        ClaimedError: another process has claimed it, with what to do.
        ValueError: nothing can be written there.
    """
    path = directory.absolute().resolve()
    if path in _HELD:
        return
    file = path / LOCK_FILE
    lock = FileLock(file, mode=PRIVATE_MODE, thread_local=False)
    if file.is_symlink():  # some versions of the library empty what it leads to
        raise ValueError(f"{directory}, by {key}, cannot be written: {file} is a symbolic link")
    try:
        make_directory(path)
        lock.acquire(blocking=False)
    except Timeout:
        raise ClaimedError(
            f"{directory} belongs to a run that still goes on{_of(file)}; wait for its end, or choose "
            f"another place by {key}={next_free(directory)}"
        ) from None
    except NotImplementedError:
        return  # a file system without locks: nobody can tell
    except OSError as error:
        raise ValueError(f"{directory}, by {key}, cannot be written: {error.strerror or error}") from error
    _HELD[path] = lock
    with suppress(OSError), opened(file, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, f"{os.getpid()}\n".encode())


def next_free(directory: Path) -> Path:
    """`directory-2`, or with the first number of which there is none."""
    number = 2
    while (candidate := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    return candidate


def _of(file: Path) -> str:
    """The process that holds it, in words, if it has said so."""
    with suppress(OSError):
        text = read_regular(file, limit=100).decode(errors="replace").strip()
        if text.isdecimal():
            return f" (process {text})"
    return ""
