import asyncio
import math

import pytest

from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.waiting import Bell
from tests.loops.virtual import now, run, settle


@pytest.mark.parametrize("there", ["here", []])
async def test_what_is_there_already_is_not_waited_for_also_if_it_is_false(there):
    assert await Bell(deadline_s=0.0).first(lambda: there, waiting_for=str) == there


async def test_every_waiter_tries_again_after_a_ring():
    bell, there = Bell(deadline_s=math.inf), []
    waiters = [asyncio.create_task(bell.first(lambda: there or None, waiting_for=str)) for _ in range(3)]
    await settle()
    bell.ring()
    await settle()
    assert not any(waiter.done() for waiter in waiters)
    there.append(1)
    bell.ring()
    assert await asyncio.gather(*waiters) == [[1]] * 3


async def test_a_wait_ends_at_its_deadline_and_says_for_what():
    bell = Bell(deadline_s=30.0)
    with pytest.raises(DeadlineError, match="waited 30 s for 2 of 3 things"):
        await bell.first(lambda: None, waiting_for=lambda: "2 of 3 things")
    assert now() == 30.0


async def test_rings_that_change_nothing_do_not_move_the_deadline():
    bell = Bell(deadline_s=10.0)
    for second in (4.0, 8.0):
        asyncio.get_running_loop().call_later(second, bell.ring)
    with pytest.raises(DeadlineError):
        await bell.first(lambda: None, waiting_for=str)
    assert now() == 10.0


async def test_what_comes_just_before_the_deadline_comes_in_time():
    bell = Bell(deadline_s=10.0)
    for second in (9.5, 9.75):
        asyncio.get_running_loop().call_later(second, bell.ring)
    await bell.first(lambda: True if now() >= 9.75 else None, waiting_for=str)


@pytest.mark.parametrize("soon", [3.0, 0.25])
async def test_a_waiter_wakes_by_itself_when_it_says_so(soon):
    bell = Bell(deadline_s=10.0)
    await bell.first(lambda: True if now() >= soon else None, waiting_for=str, wake=lambda: soon - now())
    assert now() == soon


async def test_a_failure_ends_waits_that_began_before_it_and_after_it():
    bell, error = Bell(deadline_s=math.inf), KeyError("gone")
    before = asyncio.create_task(bell.first(lambda: None, waiting_for=str))
    await settle()
    bell.fail(error)
    with pytest.raises(KeyError, match="gone"):
        await before
    with pytest.raises(KeyError, match="gone"):
        await bell.first(lambda: "here", waiting_for=str)


def waiting(bell, there, order):
    async def wait(number):
        await bell.first(lambda: there.pop() if there else None, waiting_for=str)
        order.append(number)

    return [asyncio.create_task(wait(number)) for number in range(3)]


async def test_a_ring_for_one_is_heard_by_whoever_has_waited_longest():
    bell, there, order = Bell(deadline_s=math.inf), [], []
    waiters = waiting(bell, there, order)
    await settle()
    for _ in range(3):
        there.append(True)
        bell.ring(1)
        await settle()
    assert order == [0, 1, 2]
    await asyncio.gather(*waiters)


async def test_a_ring_for_one_wakes_nobody_else():
    bell, tried = Bell(deadline_s=math.inf), []
    waiters = [
        asyncio.create_task(bell.first(lambda number=number: tried.append(number), waiting_for=str))
        for number in range(3)
    ]
    await settle()
    bell.ring(1)
    await settle()
    assert tried == [0, 1, 2, 0]
    # One that is cancelled wakes one other in its place.
    waiters[1].cancel()
    await settle()
    assert tried == [0, 1, 2, 0, 2]
    for waiter in waiters:
        waiter.cancel()


@pytest.mark.timeout(60)
def test_a_wait_without_a_deadline_sets_no_timer_so_that_a_virtual_clock_sees_that_nobody_ends_it():
    with pytest.raises(AssertionError, match="everybody waits"):
        run(Bell(deadline_s=math.inf).first(lambda: None, waiting_for=str))


@pytest.mark.parametrize("rung", [False, True])
async def test_a_waiter_that_is_cancelled_leaves_what_it_would_have_done_to_the_next(rung):
    bell, there, order = Bell(deadline_s=math.inf), [], []
    first, second, _ = waiting(bell, there, order)
    await settle()
    there.append(True)
    if rung:
        bell.ring(1)
    first.cancel()
    await second
    assert order == [1]


async def test_somebody_who_has_given_up_does_not_hear_the_ring_of_another():
    bell, there, order = Bell(deadline_s=10.0), [], []
    first, *_ = waiting(bell, there, order)
    await asyncio.sleep(5.0)
    late = waiting(bell, there, order)[0]
    with pytest.raises(DeadlineError):
        await first
    there.append(True)
    bell.ring(1)
    await late
