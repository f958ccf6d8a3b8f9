"""An event loop whose clock jumps to the next timer: waits take no time, and a deadlock is an error.

Use times that are exact in binary (0.125, 0.5, 3.0): a timer that is due in less than the resolution of
asyncio's clock fires without letting this clock move on.
"""

import asyncio
import selectors

IDLE_TURNS = 100_000


class _JumpingSelector(selectors.SelectSelector):
    now = 0.0
    turns = 0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits, and nothing will happen any more")
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > IDLE_TURNS:
            raise AssertionError("everybody is busy, and time does not move on")
        if not ready:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__(_JumpingSelector())

    def time(self):
        return self._selector.now


def run(main):
    """`asyncio.run` on a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now():
    return asyncio.get_running_loop().time()


async def settle():
    """Let everybody run who can, without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)
