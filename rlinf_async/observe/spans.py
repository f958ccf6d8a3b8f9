"""Spans: the record of a process's activities and their times, written by each process for itself.

`Process` names the processes of a run; `SPAN_KINDS` is the one table of their activities.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any

from rlinf_async.observe.files import make_directory, open_regular

FIELD_OF_START = 19
"""The index of the start time in `/proc/N/stat`, after the name; in clock ticks since boot."""


class Process(StrEnum):
    """The kinds of processes, in the order of the way of data."""

    DRIVER = "driver"
    ENV = "env worker"
    REQUESTS = "request channel"
    INFERENCE = "inference rank"
    COORDINATOR = "coordinator"
    LEARNER = "learner rank"

    def numbered(self, rank: int) -> str:
        """Return the name with its rank: `env worker 0`."""
        return f"{self} {rank}"


def kind_and_rank(name: str) -> tuple[str, int | None]:
    """Return `("env worker", 0)` for `env worker 0`; the rank of the driver is None."""
    kind, _, rank = name.rpartition(" ")
    return (kind, int(rank)) if kind and rank.isdecimal() else (name, None)


def identity(pid: int) -> dict[str, Any] | None:
    """Return `started` and `command` of a process of this machine, as plain data; None if it does not exist.

    Process numbers are reused, and a damaged file may name any of them. So a run records start time and
    program of each of its processes. `command` is the executable, as a process may change its own title.
    """
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name is in brackets, and may contain brackets.
        started = int(stat.rpartition(")")[2].split()[FIELD_OF_START])
        return {"started": started, "command": os.readlink(f"/proc/{pid}/exe")}
    return None


class Role(Enum):
    """The roles of the time of a span, in order of priority.

    Where spans overlap, the time counts for the role with the higher priority: a fetch during training is no
    wait.
    """

    WORK = auto()
    PREPARATION = auto()
    RESTARTING = auto()
    CARRYING = auto()
    WAITING = auto()
    HELD_BACK = auto()
    EVALUATION = auto()
    SAVING = auto()


@dataclass(frozen=True)
class Kind:
    """One kind of span, and its presentation.

    `words` describe the activity. `parts` are the parts of a run that record it. A kind without a role
    contains others, or overlaps with them. `track` is its row in a trace, if it does not belong to the row of
    a shard.
    """

    name: str
    words: str
    parts: tuple[str, ...]
    role: Role | None = None
    track: str = ""


ENV, INFERENCE, LEARNER, DRIVER = ("env",), ("inference",), ("learner",), ("driver",)
SPAN_KINDS = {
    kind.name: kind
    for kind in (
        Kind("gate", "at the gate", ENV, Role.HELD_BACK),
        Kind("reset", "resetting", ENV, Role.PREPARATION),
        Kind("ask", "waiting for actions", ENV, Role.WAITING),
        Kind("step", "stepping", ENV, Role.WORK),
        Kind("restart", "being built anew", ENV, Role.RESTARTING),
        Kind("put", "handing over a rollout", ENV, Role.CARRYING),
        Kind("rollout", "in a rollout", ENV),
        Kind("queued", "in the queue", ("requests",), track="queue"),
        Kind("idle", "waiting for requests", INFERENCE, Role.WAITING, "policy"),
        Kind("forward", "in a forward pass", INFERENCE, Role.WORK, "policy"),
        Kind("score", "scoring for the learner", INFERENCE, Role.WORK, "policy"),
        Kind("load", "loading weights", INFERENCE, Role.CARRYING, "weights"),
        Kind("fetch", "waiting for trajectories", LEARNER, Role.WAITING, "trajectories"),
        Kind("accept", "training", LEARNER, Role.WORK, "training"),
        Kind("finish", "training", LEARNER, Role.WORK, "training"),
        Kind("micro-batch", "in a micro-batch", LEARNER, track="training"),
        Kind("optimizer step", "in an optimizer step", LEARNER, track="training"),
        Kind("copy", "copying weights", LEARNER, Role.CARRYING, "publication"),
        Kind("send", "sending weights", LEARNER, track="publication"),
        Kind("offload", "moving on or off the accelerator", INFERENCE + LEARNER, Role.CARRYING, "weights"),
        Kind("learn", "waiting for the learner", DRIVER, track="steps"),
        Kind("evaluate", "evaluating", DRIVER, Role.EVALUATION, "steps"),
        Kind("save", "saving a checkpoint", DRIVER, Role.SAVING, "steps"),
    )
}
"""All kinds by name. Kinds of the same part and role are counted together, under the words of the first."""


def kind_words(kind: str) -> str:
    """Return the words for a kind of span; its name if `SPAN_KINDS` does not have it."""
    return SPAN_KINDS[kind].words if kind in SPAN_KINDS else kind


Span = dict[str, Any]
"""`kind`, `began` and `ended` in seconds, and facts; `error` if an exception ended it."""

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
MAX_FILE_BYTES = 64 * 1024 * 1024
"""The bytes of one file. A full file is renamed to `.before.jsonl`, replacing an earlier one, and a new
one begun."""


class SpanLog:
    """Keeps the open spans of this process, and appends a JSON line to its file for every ended span.

    With `directory` None no file is written. Ended spans are not kept in memory. A line is appended in one
    write, so that threads can share the file, and a dying process leaves no half line. Times are of the
    monotonic clock, which all processes of a machine share; the first line has its offset from the clock of
    the run.
    """

    def __init__(
        self,
        directory: str | Path | None,
        *,
        process: str = "",
        offset: float = 0.0,
        limit: int = MAX_FILE_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`offset`, in seconds, is added to this process's clock to get the clock of the run."""
        self.now = now
        self.ended = 0
        self._open_spans: dict[int, tuple[str, float, dict[str, Any]]] = {}
        self._path: Path | None = None
        self._limit = limit
        self._lock = threading.Lock()
        if directory is None:
            return
        make_directory(Path(directory))
        name = process.replace(" ", "-") or "process"
        # With the process number: a restarted process begins a file of its own.
        self._path = Path(directory) / f"{name}-{os.getpid()}.jsonl"
        self._header = _line({"process": process or name, "pid": os.getpid(), "offset": offset})
        self._open(self._path)

    def open_spans(self) -> list[dict[str, Any]]:
        """Return the open spans, the oldest first: `kind`, `seconds` since it began, and facts."""
        now = self.now()
        # A copy, as other threads begin and end spans meanwhile; `dict.copy` is atomic in the interpreter.
        spans = sorted(self._open_spans.copy().values(), key=lambda span: span[1])
        return [{**facts, "kind": kind, "seconds": now - began} for kind, began, facts in spans]

    def span(self, kind: str, **facts: object) -> AbstractContextManager[Span]:
        """Record the time of a block; the block gets the span, and may add facts to it."""
        return _Block(self, kind, facts)

    def _enter(self, kind: str, facts: Span) -> float:
        began = self.now()
        # The block holds `facts` until it leaves, so that its `id` is not reused.
        self._open_spans[id(facts)] = (kind, began, facts)
        return began

    def _leave(self, kind: str, began: float, facts: Span) -> None:
        del self._open_spans[id(facts)]
        self.add(kind, began, **facts)

    def add(self, kind: str, began: float, **facts: object) -> None:
        """Record a span that ends now."""
        self.ended += 1
        if self._path is None:
            return
        line = _line({"kind": kind, "began": round(began, 6), "ended": round(self.now(), 6), **facts})
        try:
            with self._lock:
                self._append(self._path, line)
        except OSError as error:
            # A full disk must not end a run because of its trace.
            self._path = None
            warnings.warn(f"no more spans are recorded in this process: {error.strerror}", stacklevel=2)

    def _append(self, path: Path, line: bytes) -> None:
        if self._size + len(line) > self._limit:
            # The caller holds the lock: else another thread could write to the closed descriptor, which may
            # be another file's by then.
            os.close(self._file)
            path.replace(path.with_suffix(".before.jsonl"))
            self._open(path)
        # One write per line, in append mode: a reader sees no half line, unless the disk is full.
        self._size += os.write(self._file, line)

    def _open(self, path: Path) -> None:
        self._file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._size = os.write(self._file, self._header)


UNRECORDED = SpanLog(None)
"""A log without a file, for loops without a record of their spans."""


class _Block(AbstractContextManager[Span]):
    """The block of one span; an exception that ends it is noted in the span, and passes."""

    def __init__(self, log: SpanLog, kind: str, facts: Span) -> None:
        self._log = log
        self._kind = kind
        self._facts = facts

    def __enter__(self) -> Span:
        self._began = self._log._enter(self._kind, self._facts)
        return self._facts

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._facts["error"] = error.__name__
        self._log._leave(self._kind, self._began, self._facts)


def _line(record: Mapping[str, Any]) -> bytes:
    return (_ENCODE(record) + "\n").encode()


def clock_offset(round_trips: list[tuple[float, float, float]]) -> float:
    """Return the lead of another clock over this process's clock, in seconds.

    Args:
        round_trips: `(sent, remote, received)` per call that asked for the other clock's time, in seconds.
            The shortest call counts: its error is at most half of its duration.
    """
    sent_at, remote, received_at = min(round_trips, key=lambda round_trip: round_trip[2] - round_trip[0])
    return remote - (sent_at + received_at) / 2
