import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.failures import DeadlineError, PeerError, RankLost
from rlinf_async.loops.barrier import BarrierQueues
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RequestBroker
from tests.loops.virtual import now, run, settle
from tests.making import plan, request


def dynamic(*, max_size=8, max_wait=0.0, deadline_s=60.0):
    return RequestBroker(SharedQueues(max_size=max_size, max_wait=max_wait, deadline_s=deadline_s))


def ask(broker, *shards, **fields):
    return [asyncio.create_task(broker.act(request(shard, **fields))) for shard in shards]


def take(broker, rank=0):
    return asyncio.create_task(broker.take(rank))


def shards(batch):
    return [pending.shard for pending in batch]


def fail_all(broker):
    broker.fail(list(broker._open_requests), "the test is over")


def answer(broker, batch):
    broker.reply([pending.key for pending in batch], [f"to {pending.shard}" for pending in batch])


async def test_requests_on_their_way_when_a_rank_becomes_idle_join_its_batch():
    broker = dynamic()
    ask(broker, 0)
    await settle()
    ask(broker, 1)
    assert shards(await broker.take(0)) == [0, 1]


async def test_a_take_that_does_not_wait_gives_what_there_is_and_wakes_the_next_rank_for_the_rest():
    broker = dynamic(max_size=2)
    assert broker.take_now(0) == []
    askers = ask(broker, 0, 1, 2)
    await settle()
    assert broker.take_now(0, waited_s=1.0) == []
    assert shards(broker.take_now(0)) == [0, 1]
    assert shards(broker.take_now(1)) == [2]
    askers += ask(broker, 3, 4, 5)
    await settle()
    idle = take(broker, 1)
    await settle()  # it has found two
    assert shards(await idle) == [3, 4]
    idle = take(broker, 1)
    broker.close()
    assert shards(broker.take_now(0)) == [5]
    assert broker.take_now(0) is None
    assert await idle is None
    fail_all(broker)
    await asyncio.wait(askers)


async def test_a_take_of_a_lost_rank_that_does_not_wait_gives_nothing():
    broker = dynamic()
    (asker,) = ask(broker, 0)
    broker.rank_lost(0, 1)
    await settle()
    assert broker.take_now(0) is None
    assert shards(broker.take_now(0, "", 1)) == [0]
    fail_all(broker)
    await asyncio.wait([asker])


async def test_one_request_wakes_one_of_two_idle_ranks():
    broker = dynamic()
    ranks = [take(broker, 0), take(broker, 1)]
    await settle()
    ask(broker, 0)
    await settle()
    assert [rank.done() for rank in ranks] == [True, False]
    broker.close()
    fail_all(broker)
    assert await ranks[1] is None


async def test_what_does_not_fit_into_a_batch_wakes_the_next_idle_rank():
    broker = dynamic(max_size=2)
    ranks = [take(broker, rank) for rank in range(3)]
    await settle()
    ask(broker, 0, 1, 2)
    await settle()
    assert sorted(shards(rank.result()) for rank in ranks if rank.done()) == [[0, 1], [2]]
    broker.close()
    fail_all(broker)


async def test_a_rank_that_is_cancelled_leaves_its_wait_for_company_to_another():
    broker = dynamic(max_wait=2.0)
    first, second = take(broker, 0), take(broker, 1)
    await settle()
    ask(broker, 0)
    await settle()
    first.cancel()
    assert shards(await second) == [0]
    assert now() == 2.0


async def test_a_partial_batch_waits_for_company_from_the_arrival_of_its_oldest_request():
    broker = dynamic(max_wait=2.0)
    rank = take(broker)
    await asyncio.sleep(10.0)
    ask(broker, 0)
    await asyncio.sleep(1.5)
    ask(broker, 1)
    assert shards(await rank) == [0, 1]
    assert now() == 12.0
    assert broker.batch_wait.high == 2.0
    assert broker.batch_size.high == 2.0


async def test_a_closed_broker_is_drained_and_then_tells_every_rank_to_return():
    broker = dynamic(max_size=2, max_wait=1e6, deadline_s=1e9)
    askers = ask(broker, 0, 1, 2)
    await settle()
    broker.close()
    for expected in ([0, 1], [2]):
        batch = await broker.take(0)
        assert shards(batch) == expected
        answer(broker, batch)
    assert [await broker.take(0), await broker.take(1)] == [None, None]
    assert await asyncio.gather(*askers) == ["to 0", "to 1", "to 2"]


async def test_asking_a_closed_broker_is_an_error():
    broker = dynamic()
    broker.close()
    with pytest.raises(PeerError, match="shard 3 asked for actions after inference had closed"):
        await broker.act(request(3))


async def test_an_answer_that_does_not_come_in_time_is_an_error_with_counts():
    broker = dynamic(max_size=2, deadline_s=60.0)
    askers = ask(broker, 0, 1)
    await broker.take(0)
    askers += ask(broker, 2)
    with pytest.raises(
        DeadlineError, match="shard 0 waited 60 s for actions: 1 requests wait, 2 were taken and are not"
    ):
        await askers[0]
    assert now() == 60.0


async def test_requests_whose_askers_gave_up_are_not_counted_as_taken():
    broker = dynamic(deadline_s=60.0)
    errors = await asyncio.gather(*ask(broker, 0, 1, 2), return_exceptions=True)
    assert all(" wait, 0 were taken and are not known to be answered" in str(error) for error in errors)


async def test_an_answer_to_somebody_who_has_given_up_is_dropped():
    broker = dynamic(deadline_s=1.0)
    (asker,) = ask(broker, 0)
    batch = await broker.take(0)
    with pytest.raises(DeadlineError):
        await asker
    answer(broker, batch)


async def test_a_second_answer_does_not_replace_the_first():
    broker = dynamic()
    (asker,) = ask(broker, 0)
    (pending,) = await broker.take(0)
    broker.reply([pending.key], ["first"])
    broker.reply([pending.key], ["second"])
    broker.fail([pending.key], "third")
    assert await asker == "first"


async def close(broker):
    broker.close()
    fail_all(broker)
    await settle()


async def test_a_request_goes_to_an_idle_rank_of_its_own_node():
    broker = dynamic()
    a, b = (asyncio.create_task(broker.take(rank, node)) for rank, node in enumerate("ab"))
    await settle()
    ask(broker, 0, node="b")
    await settle()
    assert [a.done(), b.done()] == [False, True]
    ask(broker, 1, node="a")
    assert shards(await a) == [1]
    await close(broker)


async def test_a_rank_takes_what_another_node_asks_while_that_nodes_ranks_are_busy():
    broker = dynamic()
    a = asyncio.create_task(broker.take(0, "a"))
    ask(broker, 0, node="b")  # no rank of node b has ever asked for work
    assert shards(await a) == [0]
    b = asyncio.create_task(broker.take(1, "b"))
    await settle()
    ask(broker, 1, node="b")
    assert shards(await b) == [1]
    ask(broker, 2, node="b")
    assert shards(await broker.take(0, "a")) == [2]
    await close(broker)


async def test_a_wait_for_company_ends_in_time_on_a_node_without_ranks():
    broker = dynamic(max_wait=4.0)
    a = asyncio.create_task(broker.take(0, "a"))
    await settle()
    ask(broker, 0, node="b")
    assert shards(await a) == [0]
    assert now() == 4.0
    await close(broker)


def barrier(*, in_step=False, **sizes):
    return RequestBroker(BarrierQueues(plan(**sizes), deadline_s=60.0, in_step=in_step))


def two_workers():
    """Two shards, one per worker, which share one rank and one stage."""
    return barrier(total_envs=4, env_workers=2, shards_per_worker=1)


async def test_without_level_2_a_rank_serves_its_own_shards_only():
    broker = barrier(total_envs=4, env_workers=2, shards_per_worker=1, inference_ranks=2)
    ranks = [take(broker, 0), take(broker, 1)]
    for shard in (0, 1):
        broker.begin(shard)
    ask(broker, 1)
    await settle()
    assert [rank.done() for rank in ranks] == [False, True]
    ask(broker, 0)
    assert shards(await ranks[0]) == [0]


@given(order=st.permutations(range(4)))
def test_in_step_every_batch_of_a_rank_is_all_its_shards_whenever_they_ask(order):
    async def main():
        # Two stages, which would be two queues, and two ranks of two shards each.
        broker = barrier(total_envs=4, env_workers=2, inference_ranks=2, shards_per_worker=2, in_step=True)
        ranks = [take(broker, 0), take(broker, 1)]
        for shard in order:
            broker.begin(shard)
            ask(broker, shard, lap=(0, 0))
            await settle()
        assert [shards(await rank) for rank in ranks] == [[0, 1], [2, 3]]

    run(main())


async def test_evaluation_shards_use_the_queues_of_the_training_shards():
    broker = barrier(total_envs=4, shards_per_worker=2)
    for shard in (2, 3):
        broker.begin(shard)
        ask(broker, shard, mode="eval")
        assert shards(await broker.take(0)) == [shard]


async def test_what_is_settled_elsewhere_is_in_no_batch_and_is_not_asked_again():
    """A rank sends its answer past the broker, whose asker confirms it at some time."""
    broker, told = dynamic(), []
    waits, taken, other = request(0), request(1), request(2)
    for asked in (taken, waits, other):
        broker.ask(asked, lambda answer, error: told.append(type(error)))
        if asked is taken:
            await broker.take(0)
    broker.settled([taken.key, waits.key, (7, 7)])
    broker.rank_lost(0, 1)
    assert (told, broker.again, broker.waiting) == ([], 0, 1)
    assert shards(await broker.take(1)) == [2]
    broker.rank_lost(1, 1)
    assert told == [RankLost]


async def test_a_barrier_takes_the_next_request_of_a_shard_whose_last_one_was_settled_late():
    broker = two_workers()
    broker.begin(0)
    broker.begin(1)
    late, following = request(0), request(0)
    broker.ask(late, lambda answer, error: None)
    broker.settled([late.key])
    broker.ask(following, lambda answer, error: None)
    ask(broker, 1)
    first, _ = await broker.take(0)
    assert first.key == following.key


async def test_scores_and_actions_are_served_by_turns_and_scores_are_no_batch_of_actions():
    broker = dynamic(max_size=2)
    askers = ask(broker, 0, 1, 2, 3) + ask(broker, 8, 9, 10, mode="score")
    await settle()
    taken = []
    while broker.waiting:
        batch = await broker.take(0)
        taken.append(shards(batch))
        answer(broker, batch)
    assert taken == [[0, 1], [8, 9], [2, 3], [10]]
    await asyncio.gather(*askers)
    assert (broker.batch_size.count, broker.batch_size.high) == (2, 2)


async def test_a_request_that_woke_a_lost_rank_wakes_another():
    broker = dynamic()
    dead, alive = take(broker, 0), take(broker, 1)
    await settle()
    (asker,) = ask(broker, 0)  # wakes rank 0, which dies before it looks
    broker.rank_lost(0, 1)
    assert await dead is None
    answer(broker, await alive)
    assert await asker == "to 0"


async def test_a_barrier_goes_on_without_lost_shards_and_waits_for_their_successors():
    broker = barrier(total_envs=3, env_workers=3, shards_per_worker=1)
    for shard in range(3):
        broker.begin(shard)
    askers = ask(broker, 0, 1)
    taking = take(broker)
    await settle()
    assert not taking.done()
    broker.shards_lost({2}, 1)
    batch = await taking
    assert shards(batch) == [0, 1]
    answer(broker, batch)
    await asyncio.gather(*askers)
    broker.begin(2)  # of the dead
    ask(broker, 0, 1)
    answer(broker, await broker.take(0))
    broker.begin(2, 1)
    ask(broker, 0, 1)
    taking = take(broker)
    await settle()
    assert not taking.done()
    broker.end(2)  # of the dead
    await settle()
    assert not taking.done()
    broker.end(2, 1)
    answer(broker, await taking)


async def test_a_request_whose_asker_gave_up_is_not_made_again_when_its_rank_is_lost():
    broker = dynamic()
    gone, other = ask(broker, 0, 1)
    await broker.take(0)
    gone.cancel()
    await settle()
    broker.rank_lost(0, 1)
    batch = await broker.take(1)
    assert (shards(batch), broker.again) == ([1], 1)
    answer(broker, batch)
    assert await other == "to 1"


async def test_a_batch_is_answered_request_by_request():
    broker = dynamic()
    ask(broker, 0, 1)
    batch = await broker.take(0)
    with pytest.raises(ValueError, match="shorter"):
        broker.reply([pending.key for pending in batch], ["one"])
    broker.fail([pending.key for pending in batch], "the test is over")


async def test_a_deadline_is_kept_to_the_second_for_requests_that_came_soon_after_each_other():
    broker = dynamic()
    first = ask(broker, 0)
    await asyncio.sleep(0.5)
    second = ask(broker, 1)
    with pytest.raises(DeadlineError):
        await first[0]
    assert not second[0].done()
    with pytest.raises(DeadlineError):
        await second[0]
    assert now() == 60.5


async def test_a_rank_that_no_shard_asks_waits_for_the_end_and_not_for_its_deadline():
    broker = barrier(shards_per_worker=1, env_workers=1, inference_ranks=2)
    idle = asyncio.create_task(broker.take(1))
    await asyncio.sleep(1000.0)
    assert not idle.done()
    broker.close()
    assert await idle is None
    with pytest.raises(DeadlineError, match="a request to inference rank 0"):
        await barrier(shards_per_worker=1, env_workers=1, inference_ranks=2).take(0)
