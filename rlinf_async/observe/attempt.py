"""An attempt of a run: the directory that it claims, and its message to whoever would start it again."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rlinf_async.observe.failures import read_failures
from rlinf_async.observe.files import PRIVATE_MODE, make_directory, opened, read_regular, write_whole

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
    # A claim is the process's: another thread may claim again, or be the last to go.
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
    # Kept, as the library gives up the lock of an object that nobody holds.
    _HELD[path] = lock
    # The number only makes a refusal clearer: the claim holds without it.
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


PLACE_VARIABLE = "RLINF_ASYNC_ATTEMPT"
"""The environment variable that names the file of the message; without it, no process waits for one."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run that has found its place, and has started or is about to."""

    run_dir: str
    checkpoints: str
    """The folder that holds its checkpoints."""
    resume: str
    """The override with which the same command goes on from the newest of them."""
    newest: int = 0
    """The number of the newest that was there before it began; what it writes has higher ones."""

    last_fault: dict[str, Any] | None = None
    """The last of the record of faults before it began; what it records stands behind that one."""

    def announce(self) -> None:
        """Write the message for the process that has started this one, if it waits for one."""
        if place := os.environ.get(PLACE_VARIABLE):
            *_, last = [None, *read_failures(Path(self.run_dir))]
            write_whole(Path(place), json.dumps(asdict(replace(self, last_fault=last))).encode())

    def faults(self) -> list[dict[str, Any]]:
        """Return the faults that this attempt has recorded, in order; all of them where older ones were
        moved away.
        """
        records = read_failures(Path(self.run_dir))
        others = [number for number, fault in enumerate(records, 1) if fault == self.last_fault]
        return records[others[-1] :] if others else records


def read_attempt(place: Path) -> Attempt | None:
    """Return the message in that file; None if there is none."""
    return Attempt(**json.loads(place.read_text())) if place.is_file() else None


class NothingLeftError(ValueError):
    """A run goes on from a checkpoint of its last step, or from one behind it."""

    def __init__(self, message: str, *, automatic: bool) -> None:
        super().__init__(message)
        self.automatic = automatic
        """True if the run was to go on from any checkpoint that there is: then it has ended, and
        nothing is wrong."""


def check_left(step: int, steps: int, *, key: str, automatic: bool) -> None:
    """See that a run of `steps` has something to train after `step`; `key` is that of the config.

    Raises:
        NothingLeftError: it has not.
    """
    if 0 < steps <= step:
        raise NothingLeftError(
            f"nothing is left to train: the checkpoint was saved after step {step}, and {key}={steps}; "
            f"to go on, set {key} to more than {step}",
            automatic=automatic,
        )
