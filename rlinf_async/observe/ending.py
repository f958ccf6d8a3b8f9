"""The end of a run before its last step: the process, the reason and the remedy, in one sentence and one
record.

Every host trains inside `recorded`. It turns every exception of a run into an `Ending` once, and records it
in the run directory: a line in `failures.jsonl`, the summary in `summary.json`, the traceback in
`traceback.txt`. The exception that reaches the caller is marked, so that it is not recorded again.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_async.core.failures import FailedForGood, StuckThread, Terminated, frames_of, in_words
from rlinf_async.observe.events import FAULT_OF_ENDING, Ending, FaultCounts
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.reading.faults import count_faults
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_files import warning_of
from rlinf_async.observe.state import RunState

CONFIG_ERROR = 2
"""The exit status of a run that could not begin."""
INTERRUPTED_STATUS = 128 + signal.SIGINT
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
OUT_OF_MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
"""The names of the errors of Python, numpy and torch for lack of memory."""
NO_THREAD_WORDS = "can't start new thread"
"""Python's words for the system's limit of processes and threads."""
LONGEST_REASON = 400
"""Characters of a reason that a sentence shows; the record has all of it."""
RESERVE_BYTES = 16 << 20
"""Bytes that a run reserves for the records of its end. They are never written to, so they cost only address
space, which is free again for the records if the address space is limited."""
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
MARK_ATTRIBUTE = "ending"
"""The attribute with the recorded `Ending` of an exception, as `RunFailed` has it."""


class RunFailed(RuntimeError):
    """A run has ended by a recorded fault; the message is one sentence, with the file of the traceback."""

    def __init__(self, ending: Ending, *, trace: Path | None) -> None:
        where = f" (the frames are in {trace})" if trace is not None else ""
        super().__init__(f"{ending}{where}")
        self.ending = ending


Judge = Callable[[BaseException], Ending]


def ending_of(error: BaseException, *, again: str = "start the run again") -> Ending:
    """Return the ending of a run by an exception in this process.

    `again`: the words for starting the run again.
    """
    driver = f"the driver ({os.getpid()})"
    if isinstance(error, KeyboardInterrupt):
        return Ending(
            how="interrupted",
            who="the run",
            why="was interrupted",
            what_next=f"to go on, {again}",
            status=INTERRUPTED_STATUS,
        )
    # Before SystemExit, its base class.
    if isinstance(error, Terminated):
        name = signal.Signals(error.number).name
        return Ending(
            how="terminated",
            who="the run",
            why=f"was asked to end by {name}",
            what_next=f"to go on, {again}",
            status=128 + error.number,
        )
    if isinstance(error, SystemExit):
        why = f"was ended by SystemExit({error.code!r}), which the run has not asked for"
        return Ending(who=driver, why=why, what_next=f"look at the code that called it, and {again}")
    if (full := full_disk(error)) is not None:
        return Ending(who=driver, why=f"cannot write: {full}", what_next=f"make room there, and {again}")
    if (beyond := _limit_reached(error)) is not None:
        return Ending(who=driver, why=f"has met {short(in_words(error))}", what_next=f"{beyond}, and {again}")
    if memory := _no_memory(error):
        remedy = f"use fewer environments or smaller batches, and {again}"
        return Ending(who=driver, why=memory, what_next=remedy, lacks_memory=True)
    blames = isinstance(error, FailedForGood | StuckThread)  # their messages name the part that failed
    message = f"cannot go on: {short(str(error))}" if blames else f"has met {short(in_words(error))}"
    return Ending(who=driver, why=message, what_next=f"fix that, and {again}")


def full_disk(error: BaseException | None) -> str | None:
    """Return the error and place of a full disk, from `error` or its causes; None if no disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL_DISK_ERRORS:
            place = f" at {error.filename}" if error.filename else ""
            return f"{os.strerror(error.errno)}{place}"
        error = error.__cause__ or error.__context__
    return None


def _limit_reached(error: BaseException) -> str | None:
    """Return how to raise the limit of the system that `error` is about; None for another error."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"raise the limit of open files, which is {files} (ulimit -n)"
    if isinstance(error, RuntimeError) and NO_THREAD_WORDS in str(error):
        return "raise the limit of processes and threads (ulimit -u, or --pids-limit of a container)"
    return None


def short(text: str) -> str:
    """Return the first line of a text, cut after `LONGEST_REASON` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "an error without a message")
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON].rstrip()} ..."


def recorded_ending(error: BaseException) -> Ending | None:
    """Return the ending of an exception that has been recorded; None if it has not."""
    ending = getattr(error, MARK_ATTRIBUTE, None)
    return ending if isinstance(ending, Ending) else None


def as_exit(interrupt: KeyboardInterrupt) -> Terminated:
    """Return an interrupt as an exit, so that Python shows no traceback; it keeps the mark of `recorded`."""
    termination = Terminated(signal.SIGINT)
    if (ending := recorded_ending(interrupt)) is not None:
        setattr(termination, MARK_ATTRIBUTE, ending)
    return termination


@contextmanager
def undisturbed() -> Iterator[None]:
    """A block that signals do not interrupt, for the last work of a run, such as ending its processes."""
    # Only the main thread can set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def recorded(
    run_dir: Callable[[], Path], *, judge: Judge = ending_of, state: Callable[[], RunState] = RunState
) -> Iterator[None]:
    """A block that records an exception which ends the run; an exception with a record passes unchanged.

    `run_dir`, `judge` and `state` are called only if the block ends by an exception.

    Raises:
        RunFailed: the run has ended by an error of any kind.
        KeyboardInterrupt, Terminated: the run was asked to end.
    """
    reserve = bytearray(RESERVE_BYTES)
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # every ending has its record
        del reserve  # frees memory for the records below
        if recorded_ending(error) is not None:
            raise
        with undisturbed():
            ending = judge(error)
            trace = put_down(run_dir(), ending, error, state=state)
        if ending.how != "failed":
            setattr(error, MARK_ATTRIBUTE, ending)
            raise
        run_failure = RunFailed(ending, trace=trace)
    else:
        return
    # Outside the handler: inside it Python would keep the error, with all its frames, as the context of this
    # one.
    raise run_failure from None


def put_down(
    run_dir: Path, ending: Ending, error: BaseException, *, state: Callable[[], RunState]
) -> Path | None:
    """Write an ending into the records of a run; return the file with the traceback, if one was written.

    A lack of disk space or memory costs records, but raises no second error.
    """
    trace = _frames_in_words(error) if ending.how == "failed" else None
    if ending.how == "failed":
        # Frees the objects in the frames: most of the memory that a run without memory can get back.
        traceback.clear_frames(error.__traceback__)
    with warning_of(run_dir):
        make_directory(run_dir)
    records = RunDir(run_dir)
    records.record(ending.fault(trace))
    # After the fault is recorded, so that the summary counts it, too.
    last = state()
    last.faults = _counted(run_dir)
    records.write_summary(last.summary(), ending)
    return None if trace is None else records.write_traceback(trace)


def _frames_in_words(error: BaseException) -> str:
    try:
        return frames_of(error)
    except MemoryError:  # `frames_of` reads the source files of the frames
        return f"{type(error).__name__}: there was no memory left to say its frames"


def _counted(run_dir: Path) -> FaultCounts:
    try:
        return count_faults(run_dir)
    except MemoryError:
        return FaultCounts(Counter({FAULT_OF_ENDING["failed"]: 1}))


def _no_memory(error: BaseException) -> str | None:
    if isinstance(error, FailedForGood) and error.kind in OUT_OF_MEMORY_ERRORS:
        return f"has no memory left: {short(str(error))}"
    if isinstance(error, MemoryError):
        return "has no memory left"
    # torch is not imported for this check: without it there is no such error.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return f"has no memory left on its accelerator ({short(str(error))})"
    return None
