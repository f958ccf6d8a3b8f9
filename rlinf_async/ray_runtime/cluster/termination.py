"""Requests to end from outside, as SLURM, Kubernetes and a closing terminal send them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlinf_async.core.failures import Terminated as Terminated

WITHIN_S = 30.0
"""After which a run that was asked to end does so, whether or not it could save: who asks waits as long."""

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals that ask for the end; SLURM sends SIGUSR1 ahead of a time limit, where it is told to."""


class Termination:
    """Heeds SIGTERM, SIGHUP and SIGUSR1: at once, or, while somebody is `patient`, at the next good moment.

    Ray, once it has started, answers SIGTERM by aborting the process: so this is installed after that.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._overdue_at = 0.0
        self._patient = False
        self._failures: dict[int, Callable[[], str | None]] = {}

    @property
    def asked(self) -> bool:
        """True if the process is asked to end."""
        return self._number is not None

    def install(self) -> None:
        """Heed the signals from now on; only the main thread can. Earlier signals are forgotten.

        A signal that this process was started to ignore, as by `nohup`, stays ignored.
        """
        self._number = None
        if threading.current_thread() is threading.main_thread():
            for number in END_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._heed)

    def take_for_failure(self, number: signal.Signals, words: Callable[[], str | None]) -> None:
        """From now on a signal for which there are `words` is a failure: it raises a RuntimeError of them.

        A framework sends it when it has seen a failure, perhaps once for each of several. It counts once, as
        what is done about the first one is not to be disturbed; and not at all after `ignore_failures`.
        """
        self._failures[number] = words
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, self._heed)

    def ignore_failures(self) -> None:
        """The run has ended, and ends its processes: that they do is no failure any more."""
        if threading.current_thread() is threading.main_thread():
            for number in self._failures:
                signal.signal(number, signal.SIG_IGN)

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
            # A request that came before the block ends it, too.
            self._raise_if(self.asked)
            yield
        finally:
            self._patient = before

    def check(self) -> float:
        """Return the seconds that are left, 60 if the end was not asked for.

        Raises:
            Terminated: no time is left.
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

    @contextmanager
    def through_ray(self) -> Iterator[None]:
        """In this block a request stays what it is where Ray makes a bare exit of it.

        Ray's waits, which look for signals themselves, catch the `SystemExit` that the handler raises, and
        raise one of their own, `SystemExit(1)`, which no longer says that somebody has asked.

        Raises:
            Terminated: in the place of such an exit.
        """
        try:
            yield
        except SystemExit as error:
            if not isinstance(error, Terminated):
                self.end()
            raise

    def _heed(self, number: int, _: object) -> None:
        if number in self._failures and (failure := self._failures[number]()) is not None:
            signal.signal(number, signal.SIG_IGN)
            raise RuntimeError(failure)
        # A scheduler may ask every process of a job, and those that start others pass it on.
        if self._number is None:
            self._number, self._overdue_at = number, time.monotonic() + WITHIN_S
        self._raise_if(not self._patient)

    def _raise_if(self, now: bool) -> None:
        if now and self._number is not None:
            raise Terminated(self._number)


TERMINATION = Termination()
"""The one `Termination` of this process, in which its signals are noted."""
