"""Waiting with a deadline, and an error that says for what.

Theory of operation. All waits of a broker have one form: try something; if it gives nothing, sleep until
something has changed, and try again. State is only ever changed by the event loop's own thread, between
awaits, so that no change is lost between a try and the sleep that follows it. A wake-up is a hint and not a
promise: the condition is tried again, and a waiter that finds that another was faster sleeps on.

`ring(n)` wakes only the n who have waited longest, where a change can serve no more. Such a wake-up must not
be lost: a waiter that is cancelled after it was woken passes it on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from rlinf_async.core.failures import DeadlineError

T = TypeVar("T")


class Bell:
    """Wakes those who wait for a change; each of them tries its own condition again.

    Failing it ends every wait, present and future, with that error.
    """

    def __init__(self, *, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._error: BaseException | None = None

    @property
    def waited_for(self) -> bool:
        """True if a task waits for a change."""
        return bool(self._waiters)

    def ring(self, waiters: int | None = None) -> None:
        """Announce a change that concerns all waiters, or only the first `waiters` of them, the longest
        wait first.
        """
        for waiter in list(islice(self._waiters, waiters)):
            _wake(waiter)
            # Removed here and not by the waiter, which runs later: a second `ring(1)` before that would wake
            # the same one, and be lost.
            del self._waiters[waiter]

    def fail(self, error: BaseException) -> None:
        """Raise `error` in all who wait now or later: nothing will change any more."""
        self._error = error
        self.ring()

    async def first(
        self,
        attempt: Callable[[], T | None],
        *,
        waiting_for: Callable[[], str],
        wake: Callable[[], float | None] = lambda: None,
    ) -> T:
        """The first result of `attempt` that is not None, tried after every change.

        `wake` names seconds after which to try again without a change, if any.

        Raises:
            DeadlineError: it took longer than `deadline_s`; the message ends with `waiting_for()`.
        """
        loop = asyncio.get_running_loop()
        # Outside of the loop: rings that change nothing must not move the deadline.
        give_up = loop.time() + self.deadline_s
        while True:
            if self._error is not None:
                raise self._error
            # No await between a try that fails and the wait below: a change in between cannot be missed.
            if (result := attempt()) is not None:
                return result
            timeout = give_up - loop.time()
            if timeout <= 0:
                raise DeadlineError(f"waited {self.deadline_s:g} s for {waiting_for()}")
            soon = wake()
            await self._next_change(timeout if soon is None else min(timeout, max(0.0, soon)))

    async def _next_change(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters[waiter] = None
        # No timer without a deadline: a virtual clock sees by that that nobody ends this wait.
        timer = None if math.isinf(seconds) else loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._waiters.pop(waiter, None)
            self.ring(1)  # what this one would have done is somebody else's now
            raise
        finally:
            self._waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
