"""The thread in which the environments of a shard live, and how long it may be silent.

Simulators block, and some are bound to the thread that made their rendering context, so a shard has a thread
of its own. A thread cannot be ended from outside. What hangs in it may be ended by `abort`, where the
environments have processes of their own: whoever waits for one of those is then told that it has died. Where
nothing helps, only the end of the whole process does, which is for its owner to decide (`StuckThread`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import NoReturn, TypeVar

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import FailedEnv, ForeignError, ShardFailure, SimulatorDied, StuckThread
from rlinf_async.loops.foreign import contained

T = TypeVar("T")

GRACE_S = 10.0
"""How long a thread may take to notice that what it waits for was ended."""
CLOSE_TIMEOUT_S = 30.0
"""How long a step that is under way at the end of a run, and closing the environments after it, may take."""
PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
"""What a simulator in a process of its own is known to have died by, where nobody looks after it."""


def nothing_to_abort(reason: str) -> bool:
    """The environments have no processes of their own."""
    return False


class SimulatorThread:
    """Calls the environments of shard `shard` in `thread`; whatever fails there is a `ShardFailure`."""

    def __init__(
        self,
        shard: int,
        thread: Executor,
        advanced: AdvancedConfig,
        *,
        abort: Callable[[str], bool] = nothing_to_abort,
    ) -> None:
        """`abort` ends the processes of environments that hang for a reason, from any thread, and says
        whether there were any."""
        self._shard, self._thread, self._advanced, self._abort = shard, thread, advanced, abort
        self._longest = {"reset_s": 0.0, "step_s": 0.0}
        """The seconds of the longest call, by the key that bounds it."""
        self._ident: int | None = None
        self.stuck = False
        """Whether a call has never come back, so that nobody should wait for the thread."""

    @property
    def shard(self) -> int:
        """The number of the shard."""
        return self._shard

    @property
    def advanced(self) -> AdvancedConfig:
        """The limits on what environments may take, and what becomes of numbers that are not finite."""
        return self._advanced

    async def build(self, function: Callable[[], T]) -> T:
        """What `function` returns: building or closing environments."""
        return await self._call(function, self._advanced.start_s, "async.advanced.start_s")

    def build_first(self, function: Callable[[], T]) -> T:
        """As `build`, where no event loop runs."""
        return self._wait_for(function, self._advanced.start_s, "async.advanced.start_s")

    def close(self, function: Callable[[], object]) -> None:
        """Call `function`, which frees the environments at the end of a run, where no event loop runs.

        Raises:
            ShardFailure: they have failed, or have not come to an end.
        """
        try:
            self._wait_for(function, CLOSE_TIMEOUT_S, "at the end of the run")
        except StuckThread as stuck:
            raise ShardFailure(str(stuck).partition("\n")[0], what="simulator hangs") from None

    async def reset(self, function: Callable[[], T]) -> T:
        """What `function` returns: a reset of the environments. Later ones may take as long, many times."""
        limit_s = self._advanced.reset_limit(self._longest["reset_s"])
        return await self._timed(function, limit_s, "reset_s")

    async def step(self, function: Callable[[], T]) -> T:
        """What `function` returns: a step of the environments. Later ones may take as long, many times."""
        limit_s = self._advanced.step_limit(self._longest["step_s"])
        return await self._timed(function, limit_s, "step_s")

    async def finish(self, function: Callable[[], object]) -> None:
        """Call `function`, by which the environments make ready for the next rollout: part of its reset."""
        limit_s = self._advanced.reset_limit(self._longest["reset_s"])
        await self._call(function, limit_s, "async.advanced.reset_s")

    async def _timed(self, function: Callable[[], T], limit_s: float, key: str) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await self._call(function, limit_s, f"async.advanced.{key}")
        self._longest[key] = max(self._longest[key], loop.time() - began)
        return result

    async def _call(self, function: Callable[[], T], limit_s: float, key: str) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._known, function)
        if not await _ends(future, limit_s):
            what = f"the environments of shard {self._shard} have not answered for {limit_s:g} s ({key})"
            await self._unblock(future, what)
        return future.result()

    def _wait_for(self, function: Callable[[], T], limit_s: float, key: str) -> T:
        future = self._thread.submit(self._known, function)
        done, _ = concurrent.futures.wait([future], limit_s)
        if not done:
            what = f"the environments of shard {self._shard} have not answered for {limit_s:g} s ({key})"
            stack = self._stack()
            if not self._aborted(what) or not concurrent.futures.wait([future], GRACE_S).done:
                self._give_up(what, stack)
        return future.result()

    def _known(self, function: Callable[[], T]) -> T:
        self._ident = threading.get_ident()
        return contained(function, self._failure)

    async def _unblock(self, future: asyncio.Future[T], what: str) -> None:
        """Have the call end that hangs.

        Raises:
            ShardFailure: its simulators were ended.
            StuckThread: nothing could end it.
        """
        stack = self._stack()
        aborted = await asyncio.to_thread(self._aborted, what)
        if aborted and await _ends(future, GRACE_S):
            failure = future.exception()
            raise ShardFailure(what, what="simulator hangs") from _error_of(failure)
        if not future.done():
            self._give_up(what, stack)

    def _give_up(self, what: str, stack: str) -> NoReturn:
        self.stuck = True
        raise StuckThread(f"{what}, and cannot be ended from outside; they stand at:\n{stack}")

    def _stack(self) -> str:
        """Where the thread stands."""
        frame = sys._current_frames().get(self._ident or 0)
        return "nobody knows where" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def _aborted(self, what: str) -> bool:
        """Whether there were processes to end. What the environments raise meanwhile, they raise in vain."""
        with suppress(ForeignError):
            return contained(lambda: self._abort(what))
        return False

    def _failure(self, error: BaseException) -> ShardFailure:
        if isinstance(error, ShardFailure):
            return error
        what: FailedEnv = "env failed"
        if isinstance(error, (SimulatorDied, *PIPE_ERRORS)):
            what = "simulator died"
        failure = ShardFailure(f"the environments of shard {self._shard} have failed", what=what)
        failure.__cause__ = ForeignError.of(error)
        return failure


class DaemonThread(Executor):
    """An executor of one thread that keeps no process alive, so that a stuck one cannot."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
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


def _error_of(failure: BaseException | None) -> BaseException | None:
    return failure.error if isinstance(failure, ShardFailure) else failure


async def _ends(future: asyncio.Future[T], seconds: float) -> bool:
    """Whether it ends within `seconds`. Whoever is cancelled meanwhile lets go of it."""
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.done()
