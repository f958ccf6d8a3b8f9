"""The learner's thread, where its run ends while it waits."""

import asyncio
import gc
from contextlib import closing, suppress
from unittest.mock import MagicMock

from rlinf_async.core.failures import PeerError
from rlinf_async.hosts.local.learner_thread import LearnerThread


class Pieces:
    """They do not come; the wait for them ends with an error, once it may."""

    def __init__(self):
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def take(self, batch, *, whole):
        self.asked.set()
        await self.released.wait()
        raise PeerError("the run has failed")


async def cancelled_twice(thread):
    """What asyncio has to say of a wait that is given up twice, and ends with an error afterwards."""
    said, loop, pieces = [], asyncio.get_running_loop(), Pieces()
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    training = asyncio.create_task(thread.train(0, pieces, lambda error: None))
    await pieces.asked.wait()
    for _ in range(2):
        training.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await training
    pieces.released.set()
    await loop.run_in_executor(thread._thread, gc.collect)  # behind the batch, which has failed by then
    for _ in range(3):  # the error has come to this loop, and the future goes
        await asyncio.sleep(0)
        gc.collect()
    return said


def test_an_error_of_the_learner_that_comes_when_nobody_waits_any_more_is_not_printed():
    with closing(LearnerThread(MagicMock(), streaming=False)) as thread:
        assert asyncio.run(cancelled_twice(thread)) == []
