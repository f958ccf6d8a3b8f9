"""The learner's thread, where its run ends while it trains."""

import asyncio
import gc
import threading
from contextlib import closing, suppress
from unittest.mock import MagicMock

from rlinf_async.core.failures import PeerError
from rlinf_async.hosts.local.trainer import LearnerThread


class Held:
    """A pass that goes on until it may end, and then fails."""

    def __init__(self):
        self.asked, self.released = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.asked.set()
        self.released.wait()
        raise PeerError("the run has failed")


class Pieces:
    """They do not come."""

    async def take(self, batch, *, whole):
        await asyncio.Event().wait()


async def cancelled(held, times):
    """What asyncio has to say of a pass that is given up so often, and ends with an error afterwards."""
    said, loop = [], asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    with closing(LearnerThread(MagicMock(begin=held), streaming=False)) as thread:
        training = asyncio.create_task(thread.train(0, Pieces()))
        await asyncio.to_thread(held.asked.wait)
        for _ in range(times):
            training.cancel()
            await asyncio.sleep(0)
        waits = not training.done()
        held.released.set()
        with suppress(asyncio.CancelledError):
            await training
        await loop.run_in_executor(thread._thread, gc.collect)  # behind the pass, which has failed by then
    for _ in range(3):  # the error has come to this loop, and the future goes
        await asyncio.sleep(0)
        gc.collect()
    return waits, said


def test_a_batch_that_is_given_up_ends_with_its_pass():
    assert asyncio.run(cancelled(Held(), 1)) == (True, [])


def test_an_error_of_the_learner_that_comes_when_nobody_waits_any_more_is_not_printed():
    assert asyncio.run(cancelled(Held(), 2)) == (False, [])
