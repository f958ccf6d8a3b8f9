import asyncio
import math

import pytest

from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.waiting import Bell
from tests.loops.virtual import now, run, settle


def test_what_is_there_already_is_not_waited_for():
    async def main():
        return await Bell(deadline_s=0.0).first(lambda: "here", waiting_for=str)

    assert run(main()) == "here"


def test_a_result_that_is_false_is_still_a_result():
    async def main():
        return await Bell(deadline_s=1.0).first(list, waiting_for=str)

    assert run(main()) == []


def test_every_waiter_tries_again_after_a_ring():
    async def main():
        bell, there = Bell(deadline_s=math.inf), []
        waiters = [asyncio.create_task(bell.first(lambda: there or None, waiting_for=str)) for _ in range(3)]
        await settle()
        bell.ring()
        await settle()
        assert not any(waiter.done() for waiter in waiters)
        there.append(1)
        bell.ring()
        assert await asyncio.gather(*waiters) == [[1]] * 3

    run(main())


def test_a_wait_ends_at_its_deadline_and_says_for_what():
    async def main():
        bell = Bell(deadline_s=30.0)
        with pytest.raises(DeadlineError, match="waited 30 s for 2 of 3 things"):
            await bell.first(lambda: None, waiting_for=lambda: "2 of 3 things")
        assert now() == 30.0

    run(main())


def test_rings_that_change_nothing_do_not_move_the_deadline():
    async def main():
        bell = Bell(deadline_s=10.0)
        for second in (4.0, 8.0):
            asyncio.get_running_loop().call_later(second, bell.ring)
        with pytest.raises(DeadlineError):
            await bell.first(lambda: None, waiting_for=str)
        assert now() == 10.0

    run(main())


def test_a_waiter_wakes_by_itself_when_it_says_so():
    async def main():
        bell = Bell(deadline_s=10.0)
        await bell.first(lambda: True if now() >= 3.0 else None, waiting_for=str, wake=lambda: 3.0 - now())
        assert now() == 3.0

    run(main())


def test_a_failure_ends_waits_that_began_before_it_and_after_it():
    async def main():
        bell, error = Bell(deadline_s=math.inf), KeyError("gone")
        before = asyncio.create_task(bell.first(lambda: None, waiting_for=str))
        await settle()
        bell.fail(error)
        with pytest.raises(KeyError, match="gone"):
            await before
        with pytest.raises(KeyError, match="gone"):
            await bell.first(lambda: "here", waiting_for=str)

    run(main())
