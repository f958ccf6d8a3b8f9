"""A command in a process group of its own, which never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ORDERLY_S = 15.0
"""How long an interrupted run may take to end in order; it promises ten seconds."""
TERMINATE_S = 5.0


def run_apart(command: Sequence[str], log: Path) -> int:
    """Run `command` to its end with its output in `log`, and return its exit status.

    What interrupts the wait, be it an interrupt, a hang-up or a request to terminate, ends the command and
    its children before it goes on.
    """
    with log.open("wb") as output, _signals_as_exits():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            return process.wait()
        finally:
            if process.returncode is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the command, ask everybody, then kill; a second interrupt kills at once."""
    try:
        process.send_signal(signal.SIGINT)
        if not _ended(process, ORDERLY_S):
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
    """Let the signals that would end this process at once raise `SystemExit`; ignored ones stay ignored."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    deadly = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)
