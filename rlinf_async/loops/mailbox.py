"""Keeps the answers for one far process until its next call takes them.

Theory of operation. An asker has at most two calls under way: one that waits here for answers, and one that
brings new requests. The one that brings requests then waits here too, in the place of the other, which
returns at once with whatever is there, perhaps nothing: it is free to bring the next requests. So a waiting
call never keeps requests from leaving, calls never pile up, and while an answer is due one call waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Answer = tuple[int, Any, BaseException | None]
"""The number of a request, its answer, and the error that prevented one."""


class Mailbox:
    """Answers that are due or have arrived, by the numbers that their asker gave to its requests.

    At most one call waits: a later one takes the place of an earlier one, which returns with nothing, so
    that calls that bring requests never pile up. No call waits in it while no answer is due.
    """

    def __init__(self) -> None:
        self._due = 0
        self._ready: list[Answer] = []
        self._call: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Return True if no answer is due and none is left."""
        return not self._due and not self._ready

    def expect(self, number: int) -> Callable[[Any, BaseException | None], None]:
        """An answer is due; what is returned takes it, or the error that prevented it."""
        self._due += 1

        def arrive(answer: Any, error: BaseException | None) -> None:
            self._due -= 1
            self._ready.append((number, answer, error))
            self._release()

        return arrive

    async def collect(self) -> list[Answer]:
        """Everything that has been answered; waits for something if nothing has and something is due."""
        self._release()
        if not self._ready and self._due:
            self._call = asyncio.get_running_loop().create_future()
            # A later call may have released this one with nothing to return: that is no error, the later call
            # waits instead.
            await self._call
        ready, self._ready = self._ready, []
        return ready

    def _release(self) -> None:
        call, self._call = self._call, None
        if call is not None and not call.done():
            call.set_result(None)
