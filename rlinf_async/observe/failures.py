"""The record of every fault of a run: what failed, what was lost, and what was done about it."""

from __future__ import annotations

import json
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rlinf_async.core.failures import FailedEnv
from rlinf_async.observe.processes import Process, kind_and_rank
from rlinf_async.observe.run_dir import RunDir, finite
from rlinf_async.observe.secrets import said_without_secrets

What = Literal[
    "env failed",
    "simulator died",
    "simulator hangs",
    "env worker died",
    "inference rank died",
    "silent",
    "not finite",
    "save failed",
    "run failed",
    "terminated",
]
"""The kinds of faults."""

LONGEST_ERROR = 2_000
LONGEST_TRACE = 8_000
"""Characters that are kept: of an error from its beginning, of a trace from its end, where the error is."""


def record_failure(
    run_dir: Path,
    *,
    process: str,
    what: What,
    error: str,
    action: str,
    shard: int | None = None,
    lost: str | None = None,
    seconds: float | None = None,
    trace: str | None = None,
) -> None:
    """Append a fault to the record of the run, in one write that processes may share.

    Args:
        process: who failed, as the run calls it: `env worker 0`.
        error: what was raised or seen, in a sentence.
        action: what was done about it: `environments built anew`.
        lost: what it cost, in words: `a rollout for batch 3`.
        seconds: how long it took until work went on.

    A full disk or a directory that has gone does not end a run that is about to go on: it is a warning.
    """
    error, trace = said_without_secrets(error), trace and said_without_secrets(trace)
    facts: dict[str, Any] = {"process": process, "what": what, "shard": shard, "error": error[:LONGEST_ERROR]}
    facts |= {"action": action, "lost": lost, "seconds": None if seconds is None else round(seconds, 3)}
    facts |= {"trace": trace and trace[-LONGEST_TRACE:]}
    line = {"time": time.time(), **{name: fact for name, fact in facts.items() if fact is not None}}
    try:
        file = os.open(RunDir(run_dir).failures, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)
    except OSError as failed:
        warnings.warn(
            f"a fault of {process} is not in the record of the run: {failed.strerror}", stacklevel=2
        )


def read_failures(run_dir: Path) -> list[dict[str, Any]]:
    """The faults of a run in the order in which they were recorded; lines that are cut off are left out."""
    try:
        return _faults(RunDir(run_dir).failures.read_text(errors="replace"))
    except OSError:
        return []


def _faults(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and record.get("what") in get_args(What) and finite(record.get("time")):
            found.append(record)
    return found


class FailureReader:
    """What is added to the record from now on; only what is new is read, as a run asks at every step."""

    def __init__(self, run_dir: Path) -> None:
        self._file, self._began = RunDir(run_dir).failures, time.time()
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        """The faults since the last call; a line that is still being written is left for the next one."""
        try:
            with self._file.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:  # another record has taken its place
                    self._read = 0
                file.seek(self._read)
                text, _, unfinished = file.read().rpartition(b"\n")
                self._read = file.tell() - len(unfinished)
        except OSError:
            return []
        return [fault for fault in _faults(text.decode(errors="replace")) if fault["time"] >= self._began]


def restarts(faults: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many of these faults were outlived, by what was started anew: env, env_worker, inference."""
    # How long it took until work went on is known of those, and of no others.
    outlived = [fault for fault in faults if "seconds" in fault]
    return dict(Counter(part for fault in outlived if (part := _restarted(fault))))


def _restarted(fault: Mapping[str, Any]) -> str | None:
    if of_environments(fault):
        return "env"
    kind, _ = kind_and_rank(str(fault.get("process")))
    return {str(Process.ENV): "env_worker", str(Process.INFERENCE): "inference"}.get(kind)


def of_environments(fault: Mapping[str, Any]) -> bool:
    """Whether it was the environments of a shard that failed."""
    return fault["what"] in get_args(FailedEnv)


def counted(faults: Sequence[Mapping[str, Any]]) -> str:
    """How many faults of which kind there were, in words: `3 faults: env failed 2, silent 1`."""
    kinds = Counter(str(fault["what"]) for fault in faults)
    said = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}: {said}"


def sentence(fault: Mapping[str, Any]) -> str:
    """A fault in one line: who, what, and what was done about it."""
    who = f"{fault.get('process')}" + (f", shard {fault['shard']}" if "shard" in fault else "")
    first_line = str(fault.get("error", "")).partition("\n")[0]
    took = f" after {fault['seconds']:g} s" if isinstance(fault.get("seconds"), int | float) else ""
    lost = f"; lost: {fault['lost']}" if fault.get("lost") else ""
    return f"{who}: {fault['what']} ({first_line}); {fault.get('action')}{took}{lost}"


def in_words(error: BaseException) -> str:
    """An error as a record calls it: its type and its message, or its type alone."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def trace_of(error: BaseException) -> str:
    """Where it was raised, with its causes."""
    return "".join(traceback.format_exception(error))
