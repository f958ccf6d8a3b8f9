"""Calls of foreign code: environments and policies, which may raise any exception, and may fork.

Theory of operation. Some exceptions act on the code that catches them. `SystemExit` and `KeyboardInterrupt`
end an event loop, `CancelledError` makes a task look cancelled, and a future refuses `StopIteration`, so that
its waiter would wait for ever. Any exception may fail to be pickled or printed. So no foreign exception
leaves its thread: `contained` catches it there, in one place, and raises an error of ours instead, which is
text.
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
"""Turns a foreign exception into an error of ours."""


def contained(function: Callable[[], T], as_ours: AsOurs = ForeignError.of) -> T:
    """Return the result of `function`; raise `as_ours(error)` for any exception of it.

    If `function` forks, the child process exits here: as a copy of this process it would continue our work.
    """
    process, failure = os.getpid(), None
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 no exception may pass: see the top of this module
        failure = as_ours(error)
    if os.getpid() != process:
        # In the child neither `finally` blocks nor exit handlers of this process may run.
        os._exit(0 if failure is None else 1)
    if failure is not None:
        raise failure  # outside of `except` it has no `__context__`, which would keep the frames alive
    return result


def let_go(close: Callable[[], object]) -> None:
    """Close environments or a policy after a failure, and ignore errors: their state is unknown."""
    with suppress(ForeignError):
        contained(close)


def harmless(error: BaseException) -> Exception:
    """Return an error unchanged if it is safe to catch, print and pickle, else as a `ForeignError`; see the
    top of this module.
    """
    # asyncio's CancelledError is no Exception; that of concurrent.futures is.
    orders = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)
    if isinstance(error, Exception) and not isinstance(error, orders) and _can_travel(error):
        return error
    return ForeignError.of(error)


def _can_travel(error: Exception) -> bool:
    """Return True if the error can be printed, which asyncio may do, and pickled for another process."""
    try:
        repr(error), str(error)
        # Both ways: an error of a class with other arguments can be pickled, but fails to be unpickled.
        pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 foreign methods may raise anything
        return False
    return True


def blaming_the_policy(place: str, *, built: str | None = None) -> AsOurs:
    """Return a function that turns an exception into a `PolicyFailure` of `place` (`inference rank 0`).

    `built`: the policy's name in the config, while it is being built.
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
"""Folders, perhaps within `STDLIB_FOLDER`, of packages outside of the standard library."""


class WatchedThread:
    """An executor of one thread that turns exceptions into those of `as_ours`, and returns the line that the
    thread executes."""

    def __init__(self, executor: Executor, as_ours: AsOurs) -> None:
        self._executor, self._as_ours = executor, as_ours
        self._ident: int | None = None

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call `function` in the thread."""
        return self._executor.submit(self._call_watched, function)

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call `function` in the thread; the future is for the running event loop."""
        return asyncio.get_running_loop().run_in_executor(self._executor, self._call_watched, function)

    def stands(self) -> str:
        """Return the line that the thread executes, outside of the standard library, and on further lines the
        stack.
        """
        # Read from another thread: the frames may change while they are printed, which does no harm.
        frame = sys._current_frames().get(self._ident or 0)
        if frame is None:
            return "at an unknown line"
        stack = traceback.extract_stack(frame)
        place = next((each for each in reversed(stack) if not _of_python(each.filename)), stack[-1])
        frames = "".join(stack.format()).rstrip()
        return f"in {place.name}, line {place.lineno} of {place.filename}\n{frames}"

    def _call_watched(self, function: Callable[[], T]) -> T:
        self._ident = threading.get_ident()
        return contained(function, self._as_ours)


class DaemonThread(Executor):
    """An executor of one daemon thread, so that a hanging thread does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon, as Python waits at its exit for the threads of `ThreadPoolExecutor`: for ever, if a thread
        # hangs.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 the future hands it to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and wait for the work that was submitted."""
        self._leave(None if wait else 0.0)

    def leave(self, seconds: float) -> None:
        """As `shutdown`, but wait at most `seconds`; a thread that hangs is abandoned."""
        self._leave(seconds)

    def _leave(self, seconds: float | None) -> None:
        self._work.put(None)
        self._thread.join(seconds)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # otherwise an idle thread would keep the objects of its last call alive


def _of_python(file: str) -> bool:
    return file.startswith(STDLIB_FOLDER) and not any(folder in file for folder in PACKAGE_FOLDERS)


async def ends(future: asyncio.Future[T], seconds: float) -> bool:
    """Return True if `future` ends within `seconds`. A cancelled caller cancels the future, too."""
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        # `asyncio.wait` does not cancel its futures when it is cancelled itself.
        future.cancel()
        raise
    return future.done()
