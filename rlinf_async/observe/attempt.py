"""An attempt of a run: the directory that it claims, and its message to the process that restarts runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from rlinf_async.observe.faults import Fault
from rlinf_async.observe.files import PRIVATE_MODE, make_directory, opened, write_whole
from rlinf_async.observe.read_files import read_regular
from rlinf_async.observe.reading.run_reader import read_faults

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


PLACE_VARIABLE = "RLINF_ASYNC_ATTEMPT"
"""The environment variable with the file for the message; unset if no process waits for one."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run that has started, or is about to start, in the directories given here."""

    run_dir: str
    checkpoints: str
    """The folder of its checkpoints."""
    resume: str
    """The override with which the same command resumes from the newest checkpoint."""
    newest: int = 0
    """The highest sequence number of checkpoints before this attempt; its own have higher ones."""

    last_fault: float | None = None
    """The time of the last recorded fault before this attempt; its own faults follow in the record."""

    def announce(self) -> None:
        """Write the message for the process that has started this one, if that waits for a message."""
        if place := os.environ.get(PLACE_VARIABLE):
            *_, last = [None, *(fault.time for fault in read_faults(Path(self.run_dir)))]
            write_whole(Path(place), json.dumps(asdict(replace(self, last_fault=last))).encode())

    def faults(self) -> list[Fault]:
        """Return the faults that this attempt has recorded, in order.

        All recorded faults are its own if `last_fault` is not in the record any more.
        """
        records = read_faults(Path(self.run_dir))
        others = [number for number, fault in enumerate(records, 1) if fault.time == self.last_fault]
        return records[others[-1] :] if others else records


def read_attempt(place: Path) -> Attempt | None:
    """Return the message in file `place`; None if there is no such file."""
    return Attempt(**json.loads(place.read_text())) if place.is_file() else None


class NothingLeftError(ValueError):
    """A run is resumed from a checkpoint of its last step, or of a later one."""

    def __init__(self, message: str, *, automatic: bool) -> None:
        super().__init__(message)
        self.automatic = automatic
        """True if the run resumes from any checkpoint there is: then it has just ended, and nothing is
        wrong."""


def check_left(step: int, steps: int, *, key: str, automatic: bool) -> None:
    """Check that a run of `steps` steps has steps left after `step`; `key` is the config key of `steps`.

    Raises:
        NothingLeftError: no step is left.
    """
    if 0 < steps <= step:
        raise NothingLeftError(
            f"nothing is left to train: the checkpoint was saved after step {step}, and {key}={steps}; "
            f"to go on, set {key} to more than {step}",
            automatic=automatic,
        )
