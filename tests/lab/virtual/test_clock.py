import asyncio
import os
import resource
import socket
from contextlib import ExitStack

import pytest

from rlinf_async.lab.virtual import clock as virtual_clock
from rlinf_async.lab.virtual.clock import run
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


async def test_work_in_an_executor_is_done_without_time_passing_and_its_error_reaches_the_caller():
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, sum, (1, 2)) == 3
    assert now() == 0.0
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, divmod, 1, 0)


def test_somebody_who_is_busy_for_ever_is_an_error_and_a_long_time_is_none(monkeypatch):
    monkeypatch.setattr(virtual_clock, "IDLE_TURNS", 100)

    async def main(turns, then):
        for _ in range(20):
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.sleep(then)
        return now()

    assert run(main(turns=80, then=1.0)) == 20
    with pytest.raises(AssertionError, match="everybody is busy, and time does not move on"):
        run(main(turns=80, then=0.0))


def test_what_arrives_from_outside_is_seen_before_time_passes():
    async def main():
        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        here, there = socket.socketpair()
        with here, there:
            loop.add_reader(here, seen.set)
            there.send(b"1")
            async with asyncio.timeout(10.0):
                await seen.wait()
            loop.remove_reader(here)
        return now()

    assert run(main()) == 0


def test_a_process_with_more_descriptors_than_select_can_tell_apart_has_the_clock_too():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * most, limits[1]), limits[1]))
    try:
        with ExitStack() as opened:
            for _ in range(most):
                opened.enter_context(open(os.devnull))
            assert run(asyncio.sleep(3.0, now)) is now
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def woken(order):
    """Who of ten runs when, all of whom are ready at the same time, three times."""

    async def main():
        told = []

        async def work(name):
            for turn in range(3):
                told.append((turn, name))
                await asyncio.sleep(0)

        await asyncio.gather(*(work(name) for name in range(10)))
        return told

    return run(main(), order=order)


def test_who_is_ready_at_the_same_time_runs_in_an_order_that_a_seed_decides():
    in_turn = [(turn, name) for turn in range(3) for name in range(10)]
    assert woken(None) == in_turn
    drawn = [woken(seed) for seed in range(5)]
    assert all(sorted(one) == in_turn for one in drawn)
    assert drawn == [woken(seed) for seed in range(5)]
    assert len({tuple(one) for one in drawn}) == 5
    for one in drawn:
        turns = {tuple(name for turn, name in one if turn == which) for which in range(3)}
        assert len(turns) == 3
