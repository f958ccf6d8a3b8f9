"""The end of a command whose process is held by threads that another package has started."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import typer

from rlinf_async.observe.ending import IGNORED_SIGNALS

GRACE_S = 5.0
"""How long the threads may go on after the end of the command."""


@contextmanager
def ending_without_threads(say: Callable[[str], None]) -> Iterator[None]:
    """After the block, the process ends although threads of other packages go on: Python would wait for each
    that is no daemon, without a word and without an end.

    Args:
        say: prints a sentence with the names of these threads.
    """
    status = 1
    try:
        yield
        status = 0
    except typer.Exit as leaving:
        status = leaving.exit_code
        raise
    finally:
        if _held_by():
            # The run is recorded: a signal would only print the traceback of Python's wait.
            for number in IGNORED_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            began, over = threading.Event(), threading.Event()
            # The last registered runs first: before the wait for the threads of executors, which is such a
            # function as well. `threading` has no public way to come before that.
            threading._register_atexit(began.set)  # type: ignore[attr-defined]
            # Exit functions run after Python's wait for threads, the last registered first.
            atexit.register(over.set)
            arguments = (began, over, status, say)
            threading.Thread(target=_leave, args=arguments, name="last", daemon=True).start()


def _held_by() -> list[str]:
    main = threading.main_thread()
    return [each.name for each in threading.enumerate() if each is not main and not each.daemon]


def _leave(began: threading.Event, over: threading.Event, status: int, say: Callable[[str], None]) -> None:
    """End the process if Python's wait for threads has begun, and is not over in time."""
    began.wait()
    if over.wait(GRACE_S):
        return
    say(
        f"threads that no part of rlinf-async has started are still at work ({', '.join(_held_by())}); the "
        "command ends without them: make them daemons, or end them in the package that starts them"
    )
    atexit._run_exitfuncs()  # Ray ends its cluster in one of these
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError, OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
