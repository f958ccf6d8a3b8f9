"""An event loop whose clock jumps to the next timer: waits take no time, and a deadlock is an error.

Work that is given to an executor is done at once, and takes none of this clock's time: who wants it to last
sleeps for as long.

Use times that are exact in binary (0.125, 0.5, 3.0): a timer that is due in less than the resolution of
asyncio's clock fires without letting this clock move on.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_TURNS = 100_000
"""Turns of the loop without a step of the clock after which somebody is taken to be busy for ever."""


class _JumpingSelector(selectors.SelectSelector):
    now = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits, and nothing will happen any more")
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > IDLE_TURNS:
            raise AssertionError("everybody is busy, and time does not move on")
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own, which begins at 0."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """`func`, done in this thread in the next turn of the loop."""

        async def work() -> T:
            return func(*args)

        return self.create_task(work())


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
