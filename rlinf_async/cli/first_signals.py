"""Answers to signals before a run has begun, while its modules are imported and its config is read."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

FIRST_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def answering_signals(when: str = "before it had begun") -> Iterator[None]:
    """Inside the block a signal ends the process with one sentence, which says `when`, and with 128 plus its
    number as exit status.

    A signal that this process was started to ignore, as by `nohup`, stays ignored. Only the main thread has
    handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, partial(_end, when))
        for number in FIRST_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            # `signal.signal` returns None for a handler that Python has not installed.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _end(when: str, number: int, _: object) -> None:
    for stream in (sys.stdout, sys.stderr):
        # The stream may be in the middle of a write, or closed.
        with suppress(RuntimeError, OSError, ValueError):
            stream.flush()
    asked = "interrupted" if number == signal.SIGINT else f"asked to end by {signal.Signals(number).name}"
    with suppress(OSError):
        os.write(2, f"the command was {asked} {when}; to go on, start it again\n".encode())
    # Not by an exception: an import may catch it, or a callback may drop it.
    os._exit(128 + number)
