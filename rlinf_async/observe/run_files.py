"""The files of a run directory, and the record of faults, which all processes of a run write."""

from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rlinf_async.observe.faults import Fault
from rlinf_async.observe.files import append

LONGEST_ERROR = 2_000
LONGEST_TRACE = 8_000
"""Characters that are kept: the first of an error, the last of a traceback, which ends with the error."""
WHOLE_RECORD_BYTES = 4 << 20
"""Faults beyond this size of their record are recorded without traceback and with a short error."""
SHORT_ERROR = 200
"""The characters of such a short error."""
MAX_RECORD_BYTES = 64 << 20
"""Bytes of a full record of faults: no fault is added to it."""


class RunFiles:
    """The files of one run, written for the own account only, and never through links."""

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.config = path / "config.yaml"
        self.facts = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.status = path / "status.json"
        self.trace = path / "trace"
        self.tensorboard = path / "tensorboard"
        """The event files of the framework's own logger."""
        self.stacks = path / "stacks"
        self.failures = path / "failures.jsonl"
        self.traceback = path / "traceback.txt"
        """The traceback of the error that has ended the run."""

    def record(self, fault: Fault) -> None:
        """Append a fault in one write, so that processes can share the file.

        A full disk, a full record, a missing directory or a lack of memory is only a warning, and does not
        end the run.
        """
        # Imported here: most processes never record a fault.
        from rlinf_async.observe.secrets import said_without_secrets

        path = self.failures
        try:
            size = path.lstat().st_size if path.exists() else 0
            if size > MAX_RECORD_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_RECORD_BYTES:,} bytes", str(path))
            whole = size < WHOLE_RECORD_BYTES
            kept = replace(
                fault,
                error=said_without_secrets(fault.error)[: LONGEST_ERROR if whole else SHORT_ERROR],
                seconds=None if fault.seconds is None else round(fault.seconds, 3),
                trace=said_without_secrets(fault.trace)[-LONGEST_TRACE:] if fault.trace and whole else None,
            )
            append(path, (json.dumps(kept.as_dict()) + "\n").encode())
        except (OSError, MemoryError) as failure:
            warnings.warn(
                f"a fault of {fault.process} is not in the record of the run: {reason_of(failure)}",
                stacklevel=2,
            )


@contextmanager
def warning_of(path: Path) -> Iterator[None]:
    """A block where a full disk or a lack of memory is a warning: a missing record must not end a run."""
    try:
        yield
    except (OSError, MemoryError) as error:
        # 3: the caller's line, beyond this generator and contextlib.
        warnings.warn(f"{path} cannot be written: {reason_of(error)}", stacklevel=3)


def reason_of(error: OSError | MemoryError) -> str:
    """Return why a file cannot be written, in a few words."""
    return "no memory is left" if isinstance(error, MemoryError) else str(error.strerror or error)
