"""Requests to end from outside, as SLURM, Kubernetes and a closing terminal send them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WITHIN_S = 30.0
"""After which a run that was asked to end does so, whether or not it could save: who asks waits as long."""

ASKS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(SystemExit):
    """The process was asked to end by a signal. Its exit status is 128 and the number, as a shell has it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class Termination:
    """Heeds SIGTERM and SIGHUP: at once, or, while somebody is `patient`, at the next good moment.

    Ray, once it has started, answers SIGTERM by aborting the process: so this is installed after that.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._overdue_at = 0.0
        self._patient = False

    @property
    def asked(self) -> bool:
        """Whether the process is to end."""
        return self._number is not None

    def install(self) -> None:
        """Heed the signals from now on; only the main thread can. What was asked before is forgotten.

        A signal that whoever started this process has it ignore, as `nohup` does, stays ignored.
        """
        self._number = None
        if threading.current_thread() is threading.main_thread():
            for number in ASKS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._heed)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """In this block a request is noted, for `asked`, and heeded by `check` when it is overdue."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block, within a patient one, a request ends the block."""
        before, self._patient = self._patient, False
        try:
            self._raise_if(self.asked)
            yield
        finally:
            self._patient = before

    def check(self) -> float:
        """The seconds that are left, 60 if nobody has asked.

        Raises:
            Terminated: none are.
        """
        if not self.asked:
            return 60.0
        seconds = self._overdue_at - time.monotonic()
        self._raise_if(seconds <= 0)
        return seconds

    def end(self) -> None:
        """Heed the request now.

        Raises:
            Terminated: always, where there was one.
        """
        self._raise_if(self.asked)

    def _heed(self, number: int, _: object) -> None:
        # A scheduler may ask every process of a job, and those that start others pass it on.
        if self._number is None:
            self._number, self._overdue_at = number, time.monotonic() + WITHIN_S
        self._raise_if(not self._patient)

    def _raise_if(self, now: bool) -> None:
        if now and self._number is not None:
            raise Terminated(self._number)


TERMINATION = Termination()
"""The one `Termination` of this process, in which its signals are noted."""


def heed_once(number: signal.Signals) -> None:
    """Have the present handler of a signal run once; what comes meanwhile and after it is ignored.

    A handler that waits for a lock which the call that it has interrupted holds never returns: one that may
    be called again while it still runs must wait for nobody, or run once. Only the main thread can do this.
    """
    handler = signal.getsignal(number)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return

    def heed(caught: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        handler(caught, frame)

    signal.signal(number, heed)
