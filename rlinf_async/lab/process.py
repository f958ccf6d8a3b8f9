"""Run a command in a process group that never outlives this process, with its output in a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rlinf_async.observe.files import COMMON_MODE, opened

ORDERLY_TIMEOUT_S = 15.0
"""Seconds that an interrupted run may take to end in order; a run promises ten."""
TERMINATE_S = 5.0
TICK_S = 1.0
OVERDUE_STATUS = 124
"""The exit status of a command that ran into its deadline, as with coreutils' `timeout`."""

OWN_CLUSTER = {"RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
"""Variables for a Ray cluster of the run's own, and for single-threaded OpenMP, so that timing threads get
cores."""

COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ERROR_PATTERN = re.compile(r"(?:\([^)]*\)\s*)?(?:error:|(?:\w+\.)*\w*(?:Error|Exception)\b)")
ERROR_BYTES = 100_000
"""Bytes at the end of a log that are searched for its error."""
MAX_ERROR_LENGTH = 300


def run_command(
    command: Sequence[str],
    log: Path,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    deadline_s: float | None = None,
    tick: Callable[[], None] | None = None,
) -> int:
    """Run `command` to its end with its output in `log`; return its exit status, or `OVERDUE_STATUS` after
    `deadline_s`.

    The deadline, and a signal during the wait (SIGINT, SIGHUP, SIGTERM), end the command and its children
    first. Call it in the main thread, where signals arrive.

    Args:
        directory: the working directory of the command.
        tick: called about once a second while the command runs.
        environment: variables of the command in addition to those of this process.
    """
    with opened(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, COMMON_MODE) as output, _signals_as_exits():
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            return _wait(process, deadline_s, tick)
        except subprocess.TimeoutExpired:
            return OVERDUE_STATUS
        finally:
            if process.returncode is None:
                _end(process)


def _wait(process: subprocess.Popen[bytes], deadline_s: float | None, tick: Callable[[], None] | None) -> int:
    if tick is None:
        return process.wait(deadline_s)
    began = time.monotonic()
    while True:
        try:
            return process.wait(TICK_S)
        except subprocess.TimeoutExpired:
            if deadline_s is not None and time.monotonic() - began > deadline_s:
                raise
            tick()


def tail(log: Path, size: int = 2000) -> str:
    """Return the last `size` bytes of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode(errors="replace")


def last_words(log: Path) -> str:
    """Return the last line of a log that reports an error, or else its last line."""
    text = COLOUR_CODES.sub("", tail(log, ERROR_BYTES))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR_PATTERN.match(line)]
    return (errors or lines or ["it has printed nothing"])[-1][:MAX_ERROR_LENGTH]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the command, terminate its group, then kill it; a second interrupt kills at once."""
    try:
        process.send_signal(signal.SIGINT)
        if not _ended(process, ORDERLY_TIMEOUT_S):
            _signal_group(process, signal.SIGTERM)
            _ended(process, TERMINATE_S)
    finally:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Within the block, turn signals that would end this process at once into `SystemExit`; ignored signals
    stay ignored.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    deadly = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)
