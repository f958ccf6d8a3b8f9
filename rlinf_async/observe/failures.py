"""The record of a run's faults: each with its process, its error, its loss and the reaction of the run."""

from __future__ import annotations

import errno
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rlinf_async.core.failures import FailedEnv, frames_of, words_of
from rlinf_async.observe import shapes
from rlinf_async.observe.files import append, lines_in, opened_to_read
from rlinf_async.observe.plain_data import finite, records_of
from rlinf_async.observe.run_dir import RunDir, reason_of
from rlinf_async.observe.secrets import said_without_secrets
from rlinf_async.observe.spans import Process, kind_and_rank

FaultKind = Literal[
    "env failed",
    "simulator died",
    "simulator hangs",
    "env worker died",
    "inference rank died",
    "node lost",
    "silent",
    "not finite",
    "save failed",
    "stranger",
    "odd policy",
    "odd environments",
    "runs out",
    "run failed",
    "terminated",
    "interrupted",
]
"""The kinds of faults."""

LONGEST_ERROR = 2_000
LONGEST_TRACE = 8_000
"""Characters that are kept: the first of an error, the last of a traceback, which ends with the error."""
WHOLE_RECORD_BYTES = 4 << 20
"""When the record has this size, further faults are recorded without traceback and with a short error."""
SHORT_ERROR = 200
"""Characters of such a short error."""
MAX_LINE_BYTES = 1 << 20
"""Bytes of the longest line that readers accept; a run writes about ten thousand at most."""
MAX_RECORD_BYTES = 64 << 20
"""Bytes of a full record: no fault is added to it, and readers read no further."""


@dataclass(frozen=True)
class FaultCounts:
    """Counts of the faults of a run, and their cost."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Faults, by `FaultKind`."""
    restarts: Counter[str] = field(default_factory=Counter)
    """Faults that the run survived, by the part that was restarted: env, env_worker, inference."""
    seconds: float = 0.0
    """The sum of the seconds until each restarted part went on; the times may overlap."""

    @classmethod
    def of(cls, faults: Iterable[Mapping[str, Any]]) -> FaultCounts:
        """Count recorded faults."""
        kinds: Counter[str] = Counter()
        restarts: Counter[str] = Counter()
        seconds = 0.0
        # One at a time: the record may be larger than the memory that is left at the end of a run.
        for fault in faults:
            kinds[str(fault["what"])] += 1
            # Only faults that the run survived have `seconds`.
            if finite(fault.get("seconds")):
                seconds += fault["seconds"]
                if (part := _restarted_part(fault)) is not None:
                    restarts[part] += 1
        return cls(kinds, restarts, seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "kinds": dict(self.kinds),
            "restarts": dict(self.restarts),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        """Return the counts in words: `3 faults: env failed 2, silent 1`."""
        counts = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        count = self.kinds.total()
        return f"{count} {'fault' if count == 1 else 'faults'}: {counts}"


def record_failure(
    run_dir: Path,
    *,
    process: str,
    what: FaultKind,
    error: str,
    action: str,
    shard: int | None = None,
    lost: str | None = None,
    seconds: float | None = None,
    trace: str | None = None,
) -> None:
    """Append a fault to the record of the run, in one write, so that processes can share the file.

    Args:
        process: the name of the process that failed: `env worker 0`.
        error: the error or the observation, in a sentence.
        action: the reaction of the run: `environments built anew`.
        lost: the lost work, in words: `a rollout for batch 3`.
        seconds: the time until work went on.

    A full disk, a full record, a missing directory or a lack of memory is only a warning, and does not end
    the run.
    """
    path = RunDir(run_dir).failures
    try:
        size = path.lstat().st_size if path.exists() else 0
        if size > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_RECORD_BYTES:,} bytes", str(path))
        whole = size < WHOLE_RECORD_BYTES
        error = said_without_secrets(error)[: LONGEST_ERROR if whole else SHORT_ERROR]
        facts = {"time": time.time(), "process": process, "what": what, "shard": shard, "error": error}
        facts |= {"action": action, "lost": lost, "seconds": None if seconds is None else round(seconds, 3)}
        facts |= {"trace": said_without_secrets(trace)[-LONGEST_TRACE:] if trace and whole else None}
        line = {name: fact for name, fact in facts.items() if fact is not None}
        append(path, (json.dumps(line) + "\n").encode())
    except (OSError, MemoryError) as failure:
        warnings.warn(
            f"a fault of {process} is not in the record of the run: {reason_of(failure)}", stacklevel=2
        )


def read_failures(run_dir: Path) -> list[dict[str, Any]]:
    """Return the faults of a run in the order of the record; damaged lines are left out."""
    return list(_recorded_faults(run_dir))


def count_failures(run_dir: Path) -> FaultCounts:
    """Count the faults of a run, with those of its earlier attempts."""
    return FaultCounts.of(_recorded_faults(run_dir))


def _recorded_faults(run_dir: Path) -> Iterator[dict[str, Any]]:
    # The last fault that was added may go beyond MAX_RECORD_BYTES.
    lines = lines_in(RunDir(run_dir).failures, limit=2 * MAX_RECORD_BYTES, longest=MAX_LINE_BYTES)
    with suppress(OSError):
        yield from _faults(line.decode(errors="replace") for line in lines)


def _faults(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    records = (
        one for one in records_of(lines) if isinstance(one.get("what"), str) and finite(one.get("time"))
    )
    return (shapes.fault(one) for one in records if one["what"] in get_args(FaultKind))


class FailureReader:
    """Reads the faults that are added to the record from now on, each once."""

    def __init__(self, run_dir: Path) -> None:
        self._path, self._began = RunDir(run_dir).failures, time.time()
        self._position, self._file_number = 0, -1

    def new(self) -> list[dict[str, Any]]:
        """Return the faults since the last call; an unfinished line is left for the next call."""
        found: list[dict[str, Any]] = []
        with suppress(OSError), opened_to_read(self._path, limit=2 * MAX_RECORD_BYTES) as (file, size):
            number = os.fstat(file.fileno()).st_ino
            if number != self._file_number or size < self._position:  # a new file
                self._position, self._file_number = 0, number
            # In pieces: an earlier attempt may have left a large record.
            while self._position < size:
                file.seek(self._position)
                text = file.read(min(size - self._position, MAX_LINE_BYTES))
                whole, end, unfinished = text.rpartition(b"\n")
                if not end and len(text) < MAX_LINE_BYTES:
                    break
                # A line longer than MAX_LINE_BYTES is left out.
                self._position += len(text) - (len(unfinished) if end else 0)
                found += _faults(whole.decode(errors="replace").splitlines())
        # The record may hold the faults of earlier attempts.
        return [fault for fault in found if fault["time"] >= self._began]


def _restarted_part(fault: Mapping[str, Any]) -> str | None:
    if is_env_fault(fault):
        return "env"
    kind, _ = kind_and_rank(str(fault.get("process")))
    return {str(Process.ENV): "env_worker", str(Process.INFERENCE): "inference"}.get(kind)


def is_env_fault(fault: Mapping[str, Any]) -> bool:
    """Return True if the environments of a shard have failed."""
    return fault["what"] in get_args(FailedEnv)


def sentence(fault: Mapping[str, Any]) -> str:
    """Return a fault in one line: the process, the error, the reaction and the loss."""
    place = f"{fault.get('process')}" + (f", shard {fault['shard']}" if "shard" in fault else "")
    first_line = str(fault.get("error", "")).partition("\n")[0]
    took = f" after {fault['seconds']:g} s" if isinstance(fault.get("seconds"), int | float) else ""
    loss = f"; lost: {fault['lost']}" if fault.get("lost") else ""
    return f"{place}: {fault['what']} ({first_line}); {fault.get('action')}{took}{loss}"


def in_words(error: BaseException) -> str:
    """Return an error as records show it: its type and its message, or its type alone."""
    # Ray's error for an error in another process has a whole traceback as message; use its cause instead.
    of_ray = type(error).__module__.partition(".")[0] == "ray"
    if of_ray and isinstance(cause := getattr(error, "cause", None), BaseException):
        return in_words(cause)
    return words_of(error)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error and its causes."""
    return frames_of(error)
