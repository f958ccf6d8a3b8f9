"""Calls of code that is not ours: environments and policies, which may raise anything, and may fork.

Theory of operation. An exception is control flow of the code that catches it. `SystemExit` and
`KeyboardInterrupt` end an event loop, `CancelledError` makes a task look as if it had been ended on purpose,
`StopIteration` cannot be given to a future, whose waiter then waits for ever; and any class may fail to be
packed, or to be printed. So nothing that others raise leaves the thread in which it was raised: `contained`
catches it there, at one place, and raises an error of ours instead, which is text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from rlinf_async.core.failures import ForeignError, PolicyFailure, kind_of, words_of

T = TypeVar("T")


AsOurs = Callable[[BaseException], Exception]
"""Says as an error of ours what others have raised."""


def contained(function: Callable[[], T], as_ours: AsOurs = ForeignError.of) -> T:
    """Return the result of `function`; any error of it is raised as `as_ours` makes it.

    A process that it has forked does not come back: it is a copy of this one, and would go on with our work.
    """
    process, failure = os.getpid(), None
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 nothing may pass: see the top of this module
        failure = as_ours(error)
    if os.getpid() != process:
        # In the copy neither `finally` blocks nor exit handlers of this process may run.
        os._exit(0 if failure is None else 1)
    if failure is not None:
        raise failure  # out here it has no context, whose frames would keep all that they refer to
    return result


def let_go(close: Callable[[], object]) -> None:
    """Close what has failed: nothing is known of it, so that closing it may fail, too."""
    with suppress(ForeignError):
        contained(close)


def harmless(error: BaseException) -> Exception:
    """Return an error as it is if it is safe for all who catch it, or in words: see the top of this
    module.
    """
    # asyncio's CancelledError is no Exception; the one of concurrent.futures is.
    orders = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)
    if isinstance(error, Exception) and not isinstance(error, orders) and _can_travel(error):
        return error
    return ForeignError.of(error)


def _can_travel(error: Exception) -> bool:
    """Return True if it can be shown, as asyncio does that in passing, and packed for another process."""
    try:
        repr(error), str(error)
        # Both ways: an error whose class wants other arguments is packed, and fails where it is unpacked.
        pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 it is code of others
        return False
    return True


def blaming_the_policy(place: str, *, built: str | None = None) -> AsOurs:
    """Says of what a policy raises that the policy of `place`, as `inference rank 0`, has failed.

    `built`: it is being built, and the config calls it so.
    """
    complaint = "the policy has failed on" if built is None else f"the policy {built} cannot be built on"

    def as_failure(error: BaseException) -> PolicyFailure:
        if isinstance(error, PolicyFailure):
            return error
        failure = PolicyFailure(f"{complaint} {place}: {words_of(error)}", kind=kind_of(error))
        failure.__cause__ = ForeignError.of(error)
        return failure

    return as_failure


STDLIB_FOLDER = os.path.dirname(threading.__file__) + os.sep
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Folders, perhaps within that one, of packages that are not Python's own."""


class WatchedThread:
    """An executor of one thread: what others raise there comes as `as_ours` says it, and it can be seen
    where they are."""

    def __init__(self, executor: Executor, as_ours: AsOurs) -> None:
        self._executor, self._as_ours = executor, as_ours
        self._ident: int | None = None

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call `function` there."""
        return self._executor.submit(self._call_watched, function)

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """The same, for the event loop that runs."""
        return asyncio.get_running_loop().run_in_executor(self._executor, self._call_watched, function)

    def stands(self) -> str:
        """Return the place where the thread is, outside of Python's own files, and on further lines its
        stack.
        """
        # A look from another thread: the frames may move on while they are printed, and that does no harm.
        frame = sys._current_frames().get(self._ident or 0)
        if frame is None:
            return "nobody knows where"
        stack = traceback.extract_stack(frame)
        place = next((each for each in reversed(stack) if not _of_python(each.filename)), stack[-1])
        frames = "".join(stack.format()).rstrip()
        return f"in {place.name}, line {place.lineno} of {place.filename}\n{frames}"

    def _call_watched(self, function: Callable[[], T]) -> T:
        self._ident = threading.get_ident()
        return contained(function, self._as_ours)


class DaemonThread(Executor):
    """An executor of one thread that keeps no process alive, so that a stuck one cannot."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: Python waits at its exit for the threads of its own executors, for ever where one hangs.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and wait for what was given."""
        self._leave(None if wait else 0.0)

    def leave(self, seconds: float) -> None:
        """As `shutdown`, and wait no longer than `seconds`: what hangs by then is left alone."""
        self._leave(seconds)

    def _leave(self, seconds: float | None) -> None:
        self._work.put(None)
        self._thread.join(seconds)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # nothing is held while there is nothing to do


def _of_python(file: str) -> bool:
    return file.startswith(STDLIB_FOLDER) and not any(folder in file for folder in PACKAGE_FOLDERS)


async def ends(future: asyncio.Future[T], seconds: float) -> bool:
    """Return True if `future` ends within `seconds`. A cancelled caller cancels the future, too."""
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        # `asyncio.wait` leaves what it waits for alone when it is cancelled itself.
        future.cancel()
        raise
    return future.done()
