"""The thread of the environments of a shard, with time limits on its calls.

Simulators block, and some are bound to the thread that made their rendering context, so that each shard has
its own thread. A thread cannot be killed. If the environments have processes of their own, `abort` kills
these, and the hanging call then raises an error about a dead process. Otherwise only the end of the whole
process helps, which is for its owner to decide (`StuckThread`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Literal, NoReturn, TypeVar

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import (
    EnvironmentsFailed,
    FailedEnv,
    ForeignError,
    ShardFailure,
    SimulatorDied,
    StuckThread,
    kind_of,
    words_of,
)
from rlinf_async.loops.foreign import WatchedThread, contained, ends

T = TypeVar("T")

GRACE_S = 10.0
"""Seconds for a thread to notice that the process it waits for was killed."""
CLOSE_TIMEOUT_S = 30.0
"""Seconds, at the end of a run, for the step under way and for closing the environments after it."""
PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
"""Errors of a pipe to a simulator's process that has died."""


def nothing_to_abort(reason: str) -> bool:
    """The environments have no processes of their own."""
    return False


Call = Literal["reset", "step"]


def not_measured(call: Call, seconds: float) -> None:
    """The default of `measured`: forget the time."""


class SimulatorThread:
    """Calls the environments of shard `shard` in `thread`; their errors become a `ShardFailure`."""

    def __init__(
        self,
        shard: int,
        thread: Executor,
        advanced: AdvancedConfig,
        *,
        abort: Callable[[str], bool] = nothing_to_abort,
        measured: Callable[[Call, float], None] = not_measured,
    ) -> None:
        """`abort(reason)` kills the processes of environments that hang; it returns True if there were any,
        and may be called from any thread. `measured` is called with the seconds of each reset and step,
        measured in the thread itself: without waits for other threads."""
        self._measured = measured
        self._shard, self._advanced, self._abort = shard, advanced, abort
        self._thread = WatchedThread(thread, self._failure)
        self._longest: dict[Call, float] = {"reset": 0.0, "step": 0.0}
        """The seconds of the longest call of each kind."""
        self.stuck = False
        """True if a call hangs for good: do not wait for the thread."""

    @property
    def shard(self) -> int:
        """The number of the shard."""
        return self._shard

    @property
    def advanced(self) -> AdvancedConfig:
        """The time limits of environments, and the treatment of numbers that are not finite."""
        return self._advanced

    async def build(self, function: Callable[[], T]) -> T:
        """Return the result of `function`: building or closing environments."""
        return await self._call(function, self._advanced.start_s, "async.advanced.start_s")

    def build_first(self, function: Callable[[], T]) -> T:
        """Build the first environments, where no event loop runs; see `begin`."""
        return self.begin(function)()

    def begin(self, function: Callable[[], T], *, doing: str = "be built") -> Callable[[], T]:
        """Start `function` in the thread; the returned callable waits for its result.

        Args:
            doing: the work of `function` for the message, after "the environments cannot".

        Raises:
            EnvironmentsFailed: `function` has failed; raised by the returned callable.
            StuckThread: `function` hangs; raised by the returned callable.
        """
        future = self._thread.submit(function)

        def built() -> T:
            try:
                return self._result(future, self._advanced.start_s, "async.advanced.start_s")
            except ShardFailure as failure:
                error = failure.error
            # Outside of the `except` block, where the failure would be its `__context__` and keep its frames.
            raise EnvironmentsFailed(
                f"the environments of shard {self._shard} cannot {doing}: {words_of(error)}",
                kind=kind_of(error),
            ) from error

        return built

    def close(self, function: Callable[[], object]) -> None:
        """Call `function`, which closes the environments at the end of a run, where no event loop runs.

        Raises:
            ShardFailure: closing has failed, or has not ended in time.
        """
        try:
            self._result(self._thread.submit(function), CLOSE_TIMEOUT_S, "at the end of the run")
        except StuckThread as stuck:
            raise ShardFailure(str(stuck).partition("\n")[0], what="simulator hangs") from None

    async def reset(self, function: Callable[[], T]) -> T:
        """Return the result of `function`: a reset of the environments. The limit is a multiple of the
        longest one so far.
        """
        limit_s = self._advanced.reset_limit(self._longest["reset"])
        return await self._call_timed(function, limit_s, "reset")

    async def step(self, function: Callable[[], T]) -> T:
        """Return the result of `function`: a step of the environments. The limit is a multiple of the longest
        one so far.
        """
        limit_s = self._advanced.step_limit(self._longest["step"])
        return await self._call_timed(function, limit_s, "step")

    async def finish(self, function: Callable[[], object]) -> None:
        """Call `function`, which prepares the environments for the next rollout; the limit is that of a
        reset."""
        limit_s = self._advanced.reset_limit(self._longest["reset"])
        await self._call(function, limit_s, "async.advanced.reset_s")

    async def _call_timed(self, function: Callable[[], T], limit_s: float, key: Call) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await self._call(partial(self._timed, key, function), limit_s, f"async.advanced.{key}_s")
        # Only for calls that have returned: a call that hangs would raise the limit of all later calls.
        self._longest[key] = max(self._longest[key], loop.time() - began)
        return result

    def _timed(self, call: Call, function: Callable[[], T]) -> T:
        began = time.monotonic()
        result = function()
        self._measured(call, time.monotonic() - began)
        return result

    async def _call(self, function: Callable[[], T], limit_s: float, key: str) -> T:
        future = self._thread.start(function)
        if not await ends(future, limit_s):
            complaint = f"the environments of shard {self._shard} have not answered for {limit_s:g} s ({key})"
            await self._unblock(future, complaint)
        return future.result()

    def _result(self, future: Future[T], limit_s: float, key: str) -> T:
        """Return the result of a call, where no event loop runs."""
        finished_calls, _ = concurrent.futures.wait([future], limit_s)
        if not finished_calls:
            complaint = f"the environments of shard {self._shard} have not answered for {limit_s:g} s ({key})"
            # Before the abort; see `_unblock`.
            stands = self._thread.stands()
            if not self._try_abort(complaint) or not concurrent.futures.wait([future], GRACE_S).done:
                self._give_up(complaint, stands)
        return future.result()

    async def _unblock(self, future: asyncio.Future[T], complaint: str) -> None:
        """End a call that hangs.

        Raises:
            ShardFailure: its simulators were killed.
            StuckThread: the call could not be ended.
        """
        # Read first: after its processes are killed, the thread is at another line.
        stands = self._thread.stands()
        # In another thread, as `abort` runs code of the environments, which may block.
        was_aborted = await asyncio.to_thread(self._try_abort, complaint)
        if was_aborted and await ends(future, GRACE_S):
            failure = future.exception()
            raise ShardFailure(complaint, what="simulator hangs") from _error_of(failure)
        # A call that has returned by itself meanwhile was only late.
        if not future.done():
            self._give_up(complaint, stands)

    def _give_up(self, complaint: str, stands: str) -> NoReturn:
        self.stuck = True
        raise StuckThread(f"{complaint}, and cannot be ended from outside; their thread is {stands}")

    def _try_abort(self, complaint: str) -> bool:
        """Return True if there were processes to kill. Errors of `abort` are ignored."""
        with suppress(ForeignError):
            return contained(lambda: self._abort(complaint))
        return False

    def _failure(self, error: BaseException) -> ShardFailure:
        if isinstance(error, ShardFailure):
            return error
        fault: FailedEnv = "env failed"
        if isinstance(error, (SimulatorDied, *PIPE_ERRORS)):
            fault = "simulator died"
        failure = ShardFailure(f"the environments of shard {self._shard} have failed", what=fault)
        failure.__cause__ = ForeignError.of(error)
        return failure


def _error_of(failure: BaseException | None) -> BaseException | None:
    return failure.error if isinstance(failure, ShardFailure) else failure
