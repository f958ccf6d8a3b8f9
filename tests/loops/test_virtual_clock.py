import asyncio

import pytest

from rlinf_async.loops.virtual_clock import run
from tests.loops.virtual import now


def test_an_hour_passes_at_once_and_in_order():
    async def main():
        order = []

        async def wake(after):
            await asyncio.sleep(after)
            order.append((after, now()))

        await asyncio.gather(wake(3600.0), wake(0.5))
        return order

    assert run(main()) == [(0.5, 0.5), (3600.0, 3600.0)]


def test_a_wait_that_nobody_ends_is_an_error():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="everybody waits"):
        run(main())


def test_work_in_an_executor_is_done_without_time_passing_and_its_error_reaches_the_caller():
    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, sum, (1, 2)) == 3
        assert now() == 0.0
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 1, 0)

    run(main())
