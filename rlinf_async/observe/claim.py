"""The directory of a run belongs to one run at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rlinf_async.observe.files import PRIVATE_MODE, make_directory, opened
from rlinf_async.observe.read_files import read_regular

LOCK_FILE = ".lock"

_HELD_LOCKS: dict[Path, FileLock] = {}
"""The claims of this process. The system releases them when the process ends, however it ends."""


class ClaimedError(ValueError):
    """Another run writes to the directory."""


def claim_directory(directory: Path, *, key: str) -> None:
    """Keep other runs from writing into `directory` while this process lives; a second claim changes nothing.

    The directory is made if it is missing. `key` is the config key that names it.

    Raises:
        ClaimedError: another process has claimed the directory; the message says what to do.
        ValueError: the directory cannot be written.
    """
    path = directory.absolute().resolve()
    if path in _HELD_LOCKS:
        return
    file = path / LOCK_FILE
    # The process holds the claim, not a thread: another thread may claim again.
    lock = FileLock(file, mode=PRIVATE_MODE, thread_local=False)
    if file.is_symlink():  # some versions of filelock empty the link's target
        raise ValueError(f"{directory} ({key}) cannot be written: {file} is a symbolic link")
    try:
        make_directory(path)
        lock.acquire(blocking=False)
    except Timeout:
        raise ClaimedError(
            f"{directory} belongs to a run that still goes on{_holder_of(file)}; wait for its end, or choose "
            f"another place by {key}={next_free(directory)}"
        ) from None
    except NotImplementedError:
        return  # a file system without locks: claims cannot be checked
    except OSError as error:
        raise ValueError(f"{directory} ({key}) cannot be written: {error.strerror or error}") from error
    # Kept, because filelock releases the lock when the object is collected.
    _HELD_LOCKS[path] = lock
    # The number only makes a refusal clearer: the claim holds without it.
    with suppress(OSError), opened(file, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, f"{os.getpid()}\n".encode())


def next_free(directory: Path) -> Path:
    """Return `directory-2`, or the same with the first free number."""
    number = 2
    while (candidate := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    return candidate


def _holder_of(file: Path) -> str:
    """Return the number of the process in a lock file, in words; "" if there is none."""
    with suppress(OSError):
        text = read_regular(file, limit=100).decode(errors="replace").strip()
        if text.isdecimal():
            return f" (process {text})"
    return ""
