"""The end of a process that other packages would hold: by threads that go on, or by exit functions (`atexit`)
that do not return. Python waits for each of them, without a word and without an end.

Theory of operation. A watching thread, which is a daemon, sees how far Python has come, and raises `Left` in
the main thread where it has waited for too long. Python reports such an exception and goes on: after its wait
for threads with the exit functions, and after an exit function with the next one. So nothing is left out but
what holds the process: Ray ends its cluster in an exit function.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from rlinf_async.core.failures import one_line
from rlinf_async.observe.ending import IGNORED_SIGNALS, LONGEST_REASON

TICK_S = 5.0
"""How long the threads may go on after the end of the command; how often the exit functions are looked at."""
TICKS_UNTIL_SAID, TICKS = 2, 12
"""A sentence names an exit function that has run for so many ticks; it is left after so many."""
WAKING_SIGNAL = signal.SIGALRM


class Left(BaseException):
    """Ends a wait of the main thread; no handler of an ordinary exception catches it."""


@contextmanager
def ending_in_time(say: Callable[[str], None]) -> Iterator[None]:
    """After the block, which leaves by `SystemExit`, the process ends although threads and exit functions of
    other packages hold it. For the main thread.

    Args:
        say: prints a sentence that names them.
    """
    moments = _LastMoments(say)
    # The last registered runs first, so that this one follows those of all packages that the block imports.
    atexit.register(moments.finished.set)
    status = 1
    try:
        yield
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        raise
    finally:
        moments.watch(status)


@dataclass
class _LastMoments:
    """How far Python has come in ending the process."""

    say: Callable[[str], None]
    began: threading.Event = field(default_factory=threading.Event)
    """Python waits for threads that are no daemons."""
    without_threads: threading.Event = field(default_factory=threading.Event)
    """They have ended; exit functions run."""
    finished: threading.Event = field(default_factory=threading.Event)
    """The exit functions of all packages have run."""
    is_leaving: bool = False
    """The next signal is to end the main thread's wait."""

    def watch(self, status: int) -> None:
        """Watch the end of the process, whose exit status is `status`."""
        # The command is over: a signal would only print the traceback of Python's wait for threads.
        for number in IGNORED_SIGNALS if _held_by() else ():
            signal.signal(number, signal.SIG_IGN)
        signal.signal(WAKING_SIGNAL, self._leave)
        sys.unraisablehook = self._say_in_a_line
        # The last registered runs first: before the wait for the threads of executors, which is such a
        # function as well. `threading` has no public way to come before that.
        threading._register_atexit(self.began.set)  # type: ignore[attr-defined]
        atexit.register(self.without_threads.set)
        threading.Thread(target=self._serve, args=(status,), name="last", daemon=True).start()

    def _serve(self, status: int) -> None:
        self.began.wait()
        if not self.without_threads.wait(TICK_S):
            self.say(
                f"threads that no part of rlinf-async has started are still at work "
                f"({', '.join(_held_by())}); the command ends without them: make them daemons, or end them "
                "in the package that starts them"
            )
            self._wake()
            if not self.without_threads.wait(TICK_S):
                _end(status)
        last, at, ticks = None, None, 0
        while not self.finished.wait(TICK_S):
            frame, line = _outermost(), _innermost()
            # A function that goes on, as one that uploads, is named, but not left.
            if TICKS_UNTIL_SAID <= ticks < TICKS and frame is last and line != at:
                at, ticks = line, TICKS_UNTIL_SAID
                continue
            ticks = ticks + 1 if frame is last or not ticks else 1
            last, at = frame, line
            if ticks == TICKS_UNTIL_SAID:
                self.say(
                    f"the command is over, and an exit function (atexit) of another package holds its "
                    f"process: {_place(frame)}; it is left after {TICKS * TICK_S:g} s in one place"
                )
            elif ticks == TICKS:
                self.say(
                    f"an exit function (atexit) has been in one place for {TICKS * TICK_S:g} s: "
                    f"{_place(frame)}; the command ends without it: mend it in the package that registers it"
                )
                self._wake()
            elif ticks > TICKS:
                _end(status)  # it does not let itself be interrupted

    def _wake(self) -> None:
        self.is_leaving = True
        signal.pthread_kill(threading.main_thread().ident or 0, WAKING_SIGNAL)

    def _leave(self, *_: object) -> None:
        if self.is_leaving:  # else a package has set an alarm, which is nothing to Ray's exit function
            self.is_leaving = False
            raise Left

    def _say_in_a_line(self, ignored: Any) -> None:
        """Report an exception that Python ignores while it ends, which would be a traceback."""
        error = ignored.exc_value
        if error is not None and not isinstance(error, Left):
            self.say(f"ignored at the end of the command: {one_line(error, LONGEST_REASON)}")


def _held_by() -> list[str]:
    main = threading.main_thread()
    return [each.name for each in threading.enumerate() if each is not main and not each.daemon]


def _outermost() -> FrameType | None:
    """Return the frame of the exit function that runs; None if it has none, as a function in C."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _innermost() -> tuple[FrameType, int] | None:
    """Return the frame in which the main thread is, and how far it has come there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (frame, frame.f_lasti)


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "a function that is not written in Python"
    return f"{frame.f_code.co_name}, line {frame.f_lineno} of {frame.f_code.co_filename}"


def _end(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError, OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
