"""Requests to end a command from outside: signals of SLURM, of Kubernetes and of a terminal.

Before a run has begun, a signal ends the process at once (`answering_signals`). Then the `Termination` of the
process handles it. This module imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from rlinf_async.core.failures import Terminated as Terminated

END_TIMEOUT_S = 30.0
"""Seconds after a request until the run ends, saved or not; SLURM and Kubernetes wait as long by default."""

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals that ask a run to end; SLURM can be told to send SIGUSR1 ahead of a time limit."""


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
        for number in (signal.SIGINT, *END_SIGNALS)
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


class Termination:
    """Handles SIGTERM, SIGHUP and SIGUSR1: at once, or, in a `patient` block, at the next good moment.

    Install it after Ray has started: Ray's own handler of SIGTERM aborts the process.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._overdue_at = 0.0
        self._patient = False
        self._failures: dict[int, Callable[[], str | None]] = {}
        self._failure: RuntimeError | None = None

    @property
    def asked(self) -> bool:
        """True if the process was asked to end."""
        return self._number is not None

    def install(self) -> None:
        """Handle the signals from now on; does nothing outside the main thread. Earlier signals are
        forgotten.

        A signal that this process was started to ignore, as by `nohup`, stays ignored.
        """
        self._number = None
        if threading.current_thread() is threading.main_thread():
            for number in END_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._heed)

    def take_for_failure(self, number: signal.Signals, words: Callable[[], str | None]) -> None:
        """Treat signal `number` as a failure from now on: if `words` returns a text, raise RuntimeError with
        it.

        A framework sends the signal when it has seen a failure, perhaps once for each of several failures.
        Only the first signal counts, so that its handling is not disturbed. After `ignore_failures` no signal
        counts.
        """
        self._failures[number] = words
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, self._heed)

    def ignore_failures(self) -> None:
        """Ignore the signals of `take_for_failure`: the run ends its processes now, which is no failure."""
        if threading.current_thread() is threading.main_thread():
            for number in self._failures:
                signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """A block where a request only sets `asked`; `check` raises it when it is overdue."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A block, within a patient one, where a request raises Terminated at once."""
        before, self._patient = self._patient, False
        try:
            # A request from before the block counts, too.
            self._raise_if(self.asked)
            yield
        finally:
            self._patient = before

    def check(self) -> float:
        """Return the seconds until the run must end; 60 if there was no request.

        Raises:
            Terminated: no time is left.
        """
        if not self.asked:
            return 60.0
        seconds = self._overdue_at - time.monotonic()
        self._raise_if(seconds <= 0)
        return seconds

    def end(self) -> None:
        """Raise the request, if there was one.

        Raises:
            Terminated: there was a request.
        """
        self._raise_if(self.asked)

    @contextmanager
    def through_ray(self) -> Iterator[None]:
        """A block that restores an exception of the handler after Ray has turned it into another.

        Ray's waits call the handler of a signal themselves. They turn its `SystemExit` into `SystemExit(1)`,
        which no longer shows that the run was asked to end. After any other exception they still return their
        result, and Python turns both into a `SystemError`.

        Raises:
            Terminated: in place of such an exit.
            RuntimeError: the failure of `take_for_failure`, in place of such a `SystemError`.
        """
        try:
            yield
        except SystemError as error:
            if self._failure is not None and error.__cause__ is self._failure:
                raise self._failure from None
            raise
        except SystemExit as error:
            if not isinstance(error, Terminated):
                self.end()
            raise

    def _heed(self, number: int, _: object) -> None:
        if number in self._failures and (failure := self._failures[number]()) is not None:
            signal.signal(number, signal.SIG_IGN)
            self._failure = RuntimeError(failure)
            raise self._failure
        # Only the first signal counts: a scheduler may signal every process of a job, and parents pass it on.
        if self._number is None:
            self._number, self._overdue_at = number, time.monotonic() + END_TIMEOUT_S
        self._raise_if(not self._patient)

    def _raise_if(self, now: bool) -> None:
        if now and self._number is not None:
            raise Terminated(self._number)


TERMINATION = Termination()
"""The one `Termination` of this process."""
