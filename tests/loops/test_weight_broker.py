import asyncio
import gc
import weakref

import pytest

from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.inference import refresh_weights
from rlinf_async.loops.weight_broker import WeightBroker
from tests.loops.virtual import now, settle


def broker_of(ranks=1, *, deadline_s=60.0, on_published=lambda version: None):
    return WeightBroker(ranks=ranks, on_published=on_published, deadline_s=deadline_s)


class Rank:
    """The inference side for one rank: applying takes `seconds`, and what was applied is noted."""

    def __init__(self, broker, rank, seconds=0.0):
        self._broker, self._rank, self._seconds = broker, rank, seconds
        self.loaded = []

    async def next(self):
        return await self._broker.next(self._rank)

    async def applied(self, version):
        self._broker.applied(self._rank, version)

    async def load(self, version, data):
        await asyncio.sleep(self._seconds)
        self.loaded.append((version, data))

    async def serve(self):
        await refresh_weights(weights=self, policy=self)


async def test_a_rank_waits_until_weights_are_offered():
    broker = broker_of()
    waiting = asyncio.create_task(broker.next(0))
    await settle()
    assert not waiting.done()
    broker.offer(0, "weights")
    assert await waiting == (0, "weights")


async def test_a_rank_is_not_given_twice_what_it_has_applied():
    broker = broker_of()
    broker.offer(0, "old")
    await broker.next(0)
    broker.applied(0, 0)
    waiting = asyncio.create_task(broker.next(0))
    await settle()
    assert not waiting.done()
    broker.offer(1, "new")
    assert await waiting == (1, "new")


async def test_a_version_is_published_when_the_slowest_rank_has_it_and_the_callback_comes_first():
    told = []
    broker = broker_of(2, on_published=told.append)
    ranks = [Rank(broker, 0, seconds=0.5), Rank(broker, 1, seconds=3.0)]
    loops = [asyncio.create_task(rank.serve()) for rank in ranks]
    await asyncio.sleep(7.0)
    broker.offer(4, "weights")
    assert broker.version is None
    lag = await broker.published(4)
    assert (lag, now(), told, broker.version) == (3.0, 10.0, [4], 4)
    broker.close()
    await asyncio.gather(*loops)
    assert [rank.loaded for rank in ranks] == [[(4, "weights")]] * 2


async def test_a_slow_rank_leaves_versions_out_and_those_who_wait_for_them_are_told_all_the_same():
    told = []
    broker = broker_of(on_published=told.append)
    rank = Rank(broker, 0, seconds=1.0)
    loop = asyncio.create_task(rank.serve())
    for version in range(4):
        broker.offer(version, version)
        await settle()
    lags = [await broker.published(version) for version in range(4)]
    assert (lags, told) == ([1.0, 2.0, 2.0, 2.0], [0, 3])
    broker.close()
    await loop
    assert [version for version, _ in rank.loaded] == [0, 3]


async def test_of_all_weights_the_newest_are_kept():
    class Weights:
        pass

    broker = broker_of(2)
    alive = weakref.WeakSet()

    def offer(version):
        weights = Weights()
        alive.add(weights)
        broker.offer(version, [weights])

    def held():
        gc.collect()
        return len(alive)

    offer(0)
    offer(1)
    assert held() == 1
    for rank in (0, 1):
        assert held() == 1
        await broker.next(rank)
        broker.applied(rank, 1)
    assert held() == 1


async def test_closing_ends_the_wait_for_new_weights():
    broker = broker_of(2)
    loops = [asyncio.create_task(Rank(broker, rank).serve()) for rank in (0, 1)]
    await settle()
    broker.close()
    await asyncio.gather(*loops)


async def test_a_rank_that_waits_for_weights_in_vain_says_so():
    broker = broker_of(deadline_s=8.0)
    with pytest.raises(DeadlineError, match="waited 8 s for new weights on inference rank 0"):
        await broker.next(0)


async def test_whoever_waits_for_a_publication_in_vain_learns_which_rank_is_behind():
    broker = broker_of(2, deadline_s=8.0)
    broker.offer(3, "weights")
    broker.applied(1, 3)
    with pytest.raises(DeadlineError, match="version 3 is offered, rank 0 has None, rank 1 has 3"):
        await broker.published(3)


async def test_a_failing_callback_is_raised_to_the_rank_and_nobody_is_told():
    def fail(version):
        raise RuntimeError("the books do not add up")

    broker = broker_of(on_published=fail)
    broker.offer(0, "weights")
    waiting = asyncio.create_task(broker.published(0))
    await settle()
    with pytest.raises(RuntimeError, match="books"):
        broker.applied(0, 0)
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_the_successor_of_a_lost_rank_is_given_the_newest_weights():
    broker = broker_of(2)
    broker.offer(0, "old")
    broker.offer(1, "new")
    for rank in (0, 1):
        await broker.next(rank)
        broker.applied(rank, 1)
    broker.rank_lost(1, 1)
    assert await broker.next(1, 1) == (1, "new")
    broker.applied(1, 1, 1)
    assert broker.version == 1


async def test_a_loss_publishes_what_the_others_have_and_tells_those_who_wait():
    told = []
    broker = broker_of(2, on_published=told.append)
    broker.offer(0, "weights")
    broker.applied(0, 0)
    broker.applied(1, 0)
    broker.offer(1, "weights")
    broker.applied(0, 1)
    waiting = asyncio.create_task(broker.published(1))
    await settle()
    assert not waiting.done()
    broker.rank_lost(1, 1)
    assert await waiting == 0.0
    assert (told, broker.version) == ([0, 1], 1)


async def test_of_a_lost_rank_nothing_counts_and_its_wait_ends():
    broker = broker_of()
    broker.offer(0, "old")
    broker.applied(0, 0)
    dead = asyncio.create_task(broker.next(0, 0))
    await settle()
    broker.rank_lost(0, 1)
    assert await dead is None
    broker.offer(1, "new")
    broker.applied(0, 1, 0)
    assert (broker.version, await broker.next(0, 0)) == (0, None)
    assert await broker.next(0, 1) == (1, "new")


async def test_a_successor_that_fetches_holds_publication_up_until_it_has_applied():
    broker = broker_of(2)
    broker.offer(0, "weights")
    broker.applied(0, 0)
    broker.applied(1, 0)
    broker.rank_lost(1, 1)
    await broker.next(1, 1)
    broker.offer(1, "weights")
    broker.applied(0, 1)
    assert broker.version == 0
    broker.applied(1, 0, 1)
    await broker.next(1, 1)
    broker.applied(1, 1, 1)
    assert broker.version == 1


async def test_a_loss_that_publishes_nothing_is_no_publication():
    told = []
    broker = broker_of(2, on_published=told.append)
    broker.offer(0, "weights")
    for rank in (0, 1):
        broker.applied(rank, 0)
    broker.rank_lost(1, 1)
    assert told == [0]
