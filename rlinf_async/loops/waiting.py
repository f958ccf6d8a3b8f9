"""Waiting with a deadline, and an error that names the missing event.

Theory of operation. All waits of a broker have one form: try an operation; if it returns None, sleep until a
change is announced, and try again. Only the thread of the event loop changes state, between awaits, so that
no change is lost between an attempt and the sleep after it. A wake-up is a hint and not a promise: the waiter
tries again, and sleeps again if another waiter was faster.

`ring(n)` wakes only the n longest waiters, if a change can serve no more than n. Such a wake-up must not be
lost: a waiter that is cancelled after it was woken wakes the next one.
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
    """Wakes the tasks that wait for a change, like a condition variable; each then tries again.

    `fail` ends every wait, present and future, with an error.
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
        """Announce a change to all waiters, or to the `waiters` of them that have waited longest."""
        for waiter in list(islice(self._waiters, waiters)):
            _wake(waiter)
            # Removed here and not by the waiter, which runs later: a second `ring(1)` before that would wake
            # the same waiter, and be lost.
            del self._waiters[waiter]

    def fail(self, error: BaseException) -> None:
        """Raise `error` in all present and future waits: no more changes will come."""
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
        # Outside of the loop, so that wake-ups do not move the deadline.
        give_up = loop.time() + self.deadline_s
        while True:
            if self._error is not None:
                raise self._error
            # No await between a failed attempt and the wait below, so that no change in between is missed.
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
        # Without a deadline no timer, so that a virtual clock can tell that this wait will not end by itself.
        timer = None if math.isinf(seconds) else loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._waiters.pop(waiter, None)
            self.ring(1)  # pass the wake-up on to the next waiter
            raise
        finally:
            self._waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
