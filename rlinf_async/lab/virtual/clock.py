"""An event loop on a clock that jumps to the next timer: waits take no time, and a deadlock is an error.

Work for an executor is done at once, and takes no virtual time; a caller sleeps to make it last.

A timer that is due in less than the resolution of asyncio's clock, a nanosecond, fires without letting this
clock move on: times that are to be compared exactly are exact in binary (0.125, 0.5, 3.0).
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_TURNS = 100_000
"""After this number of turns of the loop without a step of the clock, a task is taken to be busy for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0
    turns = 0
    before_turn: Callable[[], None] = staticmethod(lambda: None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits, and nothing will happen any more")
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > IDLE_TURNS:
            raise AssertionError("everybody is busy, and time does not move on")
        if not ready and timeout is not None:
            self.now += timeout
        self.before_turn()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock that begins at 0."""

    _ready: deque[asyncio.Handle]

    def __init__(self, order: int | None = None) -> None:
        """With the seed `order`, the ready callbacks of a turn run in an order drawn from it."""
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        if order is not None:
            self._order = random.Random(order)
            self._clock.before_turn = self._shuffle

    def time(self) -> float:
        return self._clock.now

    def _shuffle(self) -> None:
        ready = list(self._ready)
        self._order.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` in this thread in the next turn of the loop."""

        async def work() -> T:
            return func(*args)

        return self.create_task(work())


def run(main: Coroutine[Any, Any, T], *, order: int | None = None) -> T:
    """Run a coroutine as `asyncio.run` does, on a virtual clock; `order` is that of `VirtualLoop`."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(order)) as runner:
        return runner.run(main)
