"""A record of what was done when, written by each process for itself, and the words for it.

`Process` names the processes of a run, and `SPAN_KINDS` is the one table of what they do.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any

from rlinf_async.observe import shapes
from rlinf_async.observe.files import make_directory, names_in, open_regular, read_regular
from rlinf_async.observe.plain_data import finite, records_of

FIELD_OF_START = 19
"""In `/proc/N/stat`, behind the name: ticks of the clock since the machine has started."""


class Process(StrEnum):
    """The kinds of processes, in the order in which data passes them."""

    DRIVER = "driver"
    ENV = "env worker"
    REQUESTS = "request channel"
    INFERENCE = "inference rank"
    COORDINATOR = "coordinator"
    LEARNER = "learner rank"

    def numbered(self, rank: int) -> str:
        """`env worker 0`."""
        return f"{self} {rank}"


def kind_and_rank(name: str) -> tuple[str, int | None]:
    """`("env worker", 0)` of `env worker 0`; the driver has no rank."""
    kind, _, rank = name.rpartition(" ")
    return (kind, int(rank)) if kind and rank.isdecimal() else (name, None)


def identity(pid: int) -> dict[str, Any] | None:
    """`started` and `command` of a process of this machine, as plain data; None if there is none.

    Numbers are given again, and a file can name any: a run records of each of its processes when it has
    started and what it runs. A process may give itself another title, so that the command is the program
    that runs.
    """
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name stands in brackets, and may hold some.
        started = int(stat.rpartition(")")[2].split()[FIELD_OF_START])
        return {"started": started, "command": os.readlink(f"/proc/{pid}/exe")}
    return None


class Role(Enum):
    """The role of a process in the time of a span, in order of weight.

    Where spans overlap, the seconds belong to the weightier role: a fetch during training is no wait.
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
    """One kind of span, and the way it is shown.

    `parts` are the parts of a run that record it. A kind without a role consists of others, or overlaps with
    them. `track` is its row in a trace, where it has no shard whose row it belongs to.
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
"""All kinds by name. Those of one part and one role are counted together, under the words of the first."""


def kind_words(kind: str) -> str:
    """Return the words for a span of this kind; its name where the table does not have it."""
    return SPAN_KINDS[kind].words if kind in SPAN_KINDS else kind


Span = dict[str, Any]
"""`kind`, `began` and `ended` in seconds, and facts; `error` if an exception ended it."""

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
MAX_FILE_BYTES = 64 * 1024 * 1024
"""The bytes of one file. When it is full a second one is begun, and the one before that is removed."""


class SpanLog:
    """Knows what this process does, and appends a JSON line to a file of its own for every span that ended.

    `directory` None writes nothing. What has ended is not kept in memory: a line is one write at the end
    of the file, which threads share and a dying process cannot tear. Times are of the monotonic clock,
    which all processes of a machine share; the first line says how far it is from that of the run.
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
        """`offset` is what has to be added to this clock to get that of the run."""
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
        # With its number: a process that takes the place of another begins a file of its own.
        self._path = Path(directory) / f"{name}-{os.getpid()}.jsonl"
        self._header = _line({"process": process or name, "pid": os.getpid(), "offset": offset})
        self._open(self._path)

    def open_spans(self) -> list[dict[str, Any]]:
        """Return the open spans, the oldest first: `kind`, `seconds` since it began, and facts."""
        now = self.now()
        # A copy, as other threads begin and end spans while this one sorts; `dict.copy` is one step of the
        # interpreter.
        spans = sorted(self._open_spans.copy().values(), key=lambda span: span[1])
        return [{**facts, "kind": kind, "seconds": now - began} for kind, began, facts in spans]

    def span(self, kind: str, **facts: object) -> AbstractContextManager[Span]:
        """Record the time inside the block; the block may add facts to what it is given."""
        return _Block(self, kind, facts)

    def _enter(self, kind: str, facts: Span) -> float:
        began = self.now()
        # The block holds `facts` until it leaves, so that its `id` is not given again.
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
            # A full disk is no reason to end a run that only wanted to say where its time goes.
            self._path = None
            warnings.warn(f"no more spans are recorded in this process: {error.strerror}", stacklevel=2)

    def _append(self, path: Path, line: bytes) -> None:
        if self._size + len(line) > self._limit:
            # Under the lock: another thread would write to a descriptor that is closed, or another file's by
            # then.
            os.close(self._file)
            path.replace(path.with_suffix(".before.jsonl"))
            self._open(path)
        # One write per line, in append mode: a reader never sees half of one, unless the disk is full.
        self._size += os.write(self._file, line)

    def _open(self, path: Path) -> None:
        self._file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._size = os.write(self._file, self._header)


UNRECORDED = SpanLog(None)
"""For loops whose time is not recorded."""


class _Block(AbstractContextManager[Span]):
    """The time of one span; an exception that ends it is named, and goes on."""

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


def read_spans(directory: Path) -> list[Span]:
    """The spans of all processes on the clock of the run, in order of their ends; each names its `process`.

    Lines that were cut off, or that somebody else has written, are left out.
    """
    spans: list[Span] = []
    for path in names_in(directory, ".jsonl"):
        process, offset = path.stem, 0.0
        for record in _records(path):
            if "process" in record:
                offset_field = record.get("offset", 0.0)
                process, offset = str(record["process"]), float(offset_field) if finite(offset_field) else 0.0
            elif (span := shapes.span(record)) is not None:
                began, end = span["began"] + offset, span["ended"] + offset
                spans.append({**span, "began": began, "ended": end, "process": process})
    return sorted(spans, key=lambda span: span["ended"])


def read_processes(directory: Path) -> dict[str, int]:
    """The processes that have left spans, by name, with the numbers that their machines knew them by."""
    pids = {}
    for path in names_in(directory, ".jsonl"):
        header = next(_records(path), {})
        if "process" in header and isinstance(header.get("pid"), int):
            pids[str(header["process"])] = int(header["pid"])
    return pids


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = read_regular(path, limit=2 * MAX_FILE_BYTES)
    except OSError:
        return
    yield from records_of(content.decode(errors="replace").splitlines())


def _line(record: Mapping[str, Any]) -> bytes:
    return (_ENCODE(record) + "\n").encode()


def clock_offset(round_trips: list[tuple[float, float, float]]) -> float:
    """Return the seconds by which another clock is ahead of ours, from calls that asked it for its time.

    Args:
        round_trips: `(sent, remote, received)` per call, in seconds. The shortest counts: its error is at
            most half of its duration.
    """
    sent_at, remote, received_at = min(round_trips, key=lambda round_trip: round_trip[2] - round_trip[0])
    return remote - (sent_at + received_at) / 2
