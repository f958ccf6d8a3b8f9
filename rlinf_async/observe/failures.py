"""The record of every fault of a run: what failed, what was lost, and what was done about it."""

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
    "runs out",
    "run failed",
    "terminated",
    "interrupted",
]
"""The kinds of faults."""

LONGEST_ERROR = 2_000
LONGEST_TRACE = 8_000
"""Characters that are kept: of an error from its beginning, of a trace from its end, where the error is."""
WHOLE_RECORD_BYTES = 4 << 20
"""Bytes of a record from which on a fault has no frames, and the beginning of its error alone."""
SHORT_ERROR = 200
"""Characters of an error in such a record."""
MAX_LINE_BYTES = 1 << 20
"""Bytes of a fault that readers take; a run writes some ten thousand at most."""
MAX_RECORD_BYTES = 64 << 20
"""Bytes of a record that is full: no fault is added to it, and no reader reads more."""


@dataclass(frozen=True)
class FaultCounts:
    """Counts of the faults of a run, and their cost."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Faults, by the words of `FaultKind`."""
    restarts: Counter[str] = field(default_factory=Counter)
    """Faults that were outlived, by the part that was started again: env, env_worker, inference."""
    seconds: float = 0.0
    """Until work went on, over all that were outlived, each where it has failed; they may overlap."""

    @classmethod
    def of(cls, faults: Iterable[Mapping[str, Any]]) -> FaultCounts:
        """Count faults as they were recorded."""
        kinds: Counter[str] = Counter()
        restarts: Counter[str] = Counter()
        seconds = 0.0
        # One at a time: a record may be larger than what memory is left at the end of a run.
        for fault in faults:
            kinds[str(fault["what"])] += 1
            # The seconds until work went on are known of faults that were outlived, and of no others.
            if finite(fault.get("seconds")):
                seconds += fault["seconds"]
                if (part := _restarted_part(fault)) is not None:
                    restarts[part] += 1
        return cls(kinds, restarts, seconds)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kinds": dict(self.kinds),
            "restarts": dict(self.restarts),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        """In words: `3 faults: env failed 2, silent 1`."""
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
    """Append a fault to the record of the run, in one write that processes may share.

    Args:
        process: the process that failed, as the run calls it: `env worker 0`.
        error: the error or the observation, in a sentence.
        action: the reaction of the run: `environments built anew`.
        lost: the cost, in words: `a rollout for batch 3`.
        seconds: the time until work went on.

    A full disk, a full record, a directory that has gone or a lack of memory does not end a run that is about
    to go on: it is a warning.
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
    """The faults of a run in the order in which they were recorded; lines that are cut off are left out."""
    return list(_recorded_faults(run_dir))


def count_failures(run_dir: Path) -> FaultCounts:
    """Return the counts of faults of a run, since it began for the first time."""
    return FaultCounts.of(_recorded_faults(run_dir))


def _recorded_faults(run_dir: Path) -> Iterator[dict[str, Any]]:
    # The last fault of a record that is not yet full goes beyond its bytes.
    lines = lines_in(RunDir(run_dir).failures, limit=2 * MAX_RECORD_BYTES, longest=MAX_LINE_BYTES)
    with suppress(OSError):
        yield from _faults(line.decode(errors="replace") for line in lines)


def _faults(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    records = (
        one for one in records_of(lines) if isinstance(one.get("what"), str) and finite(one.get("time"))
    )
    return (shapes.fault(one) for one in records if one["what"] in get_args(FaultKind))


class FailureReader:
    """Reads the faults that are added to the record from now on; each once, as a run asks at every step."""

    def __init__(self, run_dir: Path) -> None:
        self._path, self._began = RunDir(run_dir).failures, time.time()
        self._position, self._file_number = 0, -1

    def new(self) -> list[dict[str, Any]]:
        """The faults since the last call; a line that is still being written is left for the next one."""
        found: list[dict[str, Any]] = []
        with suppress(OSError), opened_to_read(self._path, limit=2 * MAX_RECORD_BYTES) as (file, size):
            number = os.fstat(file.fileno()).st_ino
            if number != self._file_number or size < self._position:  # another has taken its place
                self._position, self._file_number = 0, number
            # In pieces: an earlier attempt may have left much.
            while self._position < size:
                file.seek(self._position)
                text = file.read(min(size - self._position, MAX_LINE_BYTES))
                whole, end, unfinished = text.rpartition(b"\n")
                if not end and len(text) < MAX_LINE_BYTES:
                    break
                # What is longer than a line may be, and has no end, is left out.
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
    """Return True if it was the environments of a shard that failed."""
    return fault["what"] in get_args(FailedEnv)


def sentence(fault: Mapping[str, Any]) -> str:
    """A fault in one line: who, what, and what was done about it."""
    place = f"{fault.get('process')}" + (f", shard {fault['shard']}" if "shard" in fault else "")
    first_line = str(fault.get("error", "")).partition("\n")[0]
    took = f" after {fault['seconds']:g} s" if isinstance(fault.get("seconds"), int | float) else ""
    loss = f"; lost: {fault['lost']}" if fault.get("lost") else ""
    return f"{place}: {fault['what']} ({first_line}); {fault.get('action')}{took}{loss}"


def in_words(error: BaseException) -> str:
    """An error as a record calls it: its type and its message, or its type alone."""
    # Of an error that Ray brings from another process the message is a whole trace; the error is its cause.
    of_ray = type(error).__module__.partition(".")[0] == "ray"
    if of_ray and isinstance(cause := getattr(error, "cause", None), BaseException):
        return in_words(cause)
    return words_of(error)


def trace_of(error: BaseException) -> str:
    """Return the frames of an error, with those of its causes."""
    return frames_of(error)
