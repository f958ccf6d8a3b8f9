import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.trajectory_broker import MAX_REFUSALS, TrajectoryBroker
from tests.loops.virtual import now, run, settle
from tests.making import piece, plan, rollout


def broker_of(layout, *, max_staleness=0, deadline_s=60.0, **options):
    return TrajectoryBroker(layout, max_staleness=max_staleness, deadline_s=deadline_s, **options)


ONE = plan(total_envs=1, shards_per_worker=1)
TWO = plan(total_envs=2, shards_per_worker=2)


async def put(broker, ticket, layout=TWO, **versions):
    await broker.put(ticket, rollout(layout, ticket, **versions))


async def train(broker, batch, layout=ONE):
    """Collect, take and publish one batch of every shard."""
    for shard in range(layout.shards):
        await put(broker, await broker.admit(shard), layout)
    await broker.take(0, batch, whole=True)
    broker.publish(batch + 1)


async def test_a_shard_waits_at_the_bound_until_a_version_is_published():
    broker = broker_of(ONE)
    await put(broker, await broker.admit(0), ONE)
    waiting = asyncio.create_task(broker.admit(0))
    await settle()
    assert not waiting.done()
    await broker.take(0, 0, whole=True)
    broker.publish(1)
    assert ((await waiting).batch, (await waiting).version) == (1, 1)


async def test_a_rollout_that_is_handed_over_wakes_nobody_at_the_gate(monkeypatch):
    broker = broker_of(TWO)
    tickets = [await broker.admit(shard) for shard in range(2)]
    await put(broker, tickets[0])
    waiting, tried = asyncio.create_task(broker.admit(0)), []
    await settle()
    monkeypatch.setattr(broker.gate, "admit", tried.append)
    await put(broker, tickets[1])
    await settle()
    assert tried == []
    waiting.cancel()


@pytest.mark.parametrize("ends", [TrajectoryBroker.close, TrajectoryBroker.pause])
async def test_closing_and_a_pause_end_the_wait_at_the_gate_at_once(ends):
    broker = broker_of(ONE)
    await broker.admit(0)
    waiting = asyncio.create_task(broker.admit(0))
    await settle()
    ends(broker)
    assert await waiting is None
    assert now() == 0.0


async def test_a_refused_rollout_is_collected_again_in_its_own_place():
    broker = broker_of(ONE, max_staleness=1, version=3)
    ticket = await broker.admit(0)
    await put(broker, ticket, ONE, oldest=1)
    assert broker.ledger.refused == {"stale": 1}
    again = await broker.admit(0)
    assert (again.batch, again.epoch) == (ticket.batch, ticket.epoch)
    await put(broker, again, ONE)
    pieces, last = await broker.take(0, 3, whole=True)
    assert ([piece.oldest for piece in pieces], last) == ([3], True)


async def test_a_refused_rollout_of_many_pieces_is_refunded_once():
    layout = plan(total_envs=4, shards_per_worker=1, learner_ranks=4)
    broker = broker_of(layout, max_staleness=0, version=2)
    await put(broker, await broker.admit(0), layout, oldest=0)
    assert broker.ledger.refused == {"stale": 4}
    assert (await broker.admit(0)).batch == 2
    waiting = asyncio.create_task(broker.admit(0))
    await settle()
    assert not waiting.done()
    broker.close()


async def test_a_rollout_that_is_given_up_is_counted_whole_and_collected_again_in_its_own_place():
    layout = plan(total_envs=8, shards_per_worker=2, learner_ranks=2)
    broker = broker_of(layout, max_staleness=1)
    ticket = await broker.admit(1)
    await broker.abandon(ticket, "env failed")
    assert str(broker.ledger) == "produced 4 = trained 0 + in flight 0 + 4 refused (env failed 4)"
    again = await broker.admit(1)
    assert (again.batch, again.epoch, again.place) == (ticket.batch, ticket.epoch, ticket.place)
    assert (await broker.admit(1)).batch == 1


@pytest.mark.parametrize("ends", ["given up", "refused"])
async def test_a_rollout_that_is_given_up_or_refused_wakes_whoever_may_collect_it_instead(ends):
    broker = broker_of(TWO, any_place=True)
    ticket = await broker.admit(0)
    await broker.admit(1)
    waiting = asyncio.create_task(broker.admit(1))
    await settle()
    assert not waiting.done()
    if ends == "given up":
        await broker.abandon(ticket, "env failed")
    else:
        await put(broker, ticket, oldest=-1)
    assert (await waiting).place == ticket.place
    assert now() == 0.0


@pytest.mark.parametrize("first", ["put", "abandon"])
@pytest.mark.parametrize("second", ["put", "abandon"])
async def test_a_rollout_counts_once_whatever_is_said_of_it_later(first, second):
    broker = broker_of(ONE)
    ticket = await broker.admit(0)
    for what in (first, second):
        if what == "put":
            await put(broker, ticket, ONE)
        else:
            await broker.abandon(ticket, "env failed")
    assert broker.ledger.produced == 1
    assert broker.buffer.held() == broker.ledger.in_flight == (first == "put")
    waiting = asyncio.create_task(broker.admit(0))
    await settle()
    assert waiting.done() == (first == "abandon")
    waiting.cancel()


async def test_only_rollouts_that_go_on_are_said_to_be_collected():
    broker = broker_of(TWO)
    ticket = await broker.admit(0)
    await broker.admit(1)
    await broker.abandon(ticket, "env failed")
    with pytest.raises(DeadlineError, match="1 rollouts are being collected"):
        await broker.take(0, 0, whole=True)


async def test_a_whole_batch_is_handed_over_at_once():
    broker = broker_of(TWO)
    learner = asyncio.create_task(broker.take(0, 0, whole=True))
    await put(broker, await broker.admit(0))
    await settle()
    assert not learner.done()
    await put(broker, await broker.admit(1))
    pieces, last = await learner
    assert ([piece.ticket.shard for piece in pieces], last) == ([0, 1], True)


async def test_a_streamed_batch_is_handed_over_as_it_arrives_and_its_end_is_said():
    broker = broker_of(TWO)
    handed = []
    for shard in (1, 0):
        await put(broker, await broker.admit(shard))
        pieces, last = await broker.take(0, 0, whole=False)
        handed.append(([piece.ticket.shard for piece in pieces], last))
    assert handed == [([1], False), ([0], True)]


async def test_a_streamed_take_waits_for_something_and_takes_all_of_it():
    broker = broker_of(plan(total_envs=4, shards_per_worker=4))
    learner = asyncio.create_task(broker.take(0, 0, whole=False))
    await settle()
    assert not learner.done()
    for shard in (0, 1, 2):
        await put(broker, await broker.admit(shard), plan(total_envs=4, shards_per_worker=4))
    pieces, last = await learner
    assert (len(pieces), last) == (3, False)


async def test_ranks_wait_for_their_own_pieces_only():
    layout = plan(total_envs=2, shards_per_worker=2, learner_ranks=2)
    broker = broker_of(layout)
    learners = [asyncio.create_task(broker.take(rank, 0, whole=True)) for rank in (0, 1)]
    await put(broker, await broker.admit(1), layout)
    await settle()
    assert [learner.done() for learner in learners] == [False, True]
    broker.fail(KeyError("over"))
    with pytest.raises(KeyError):
        await learners[0]


async def test_a_batch_that_is_collected_ahead_waits_for_its_turn():
    broker = broker_of(ONE, max_staleness=1)
    for _ in range(2):
        await put(broker, await broker.admit(0), ONE)
    for batch in (0, 1):
        (piece,), last = await broker.take(0, batch, whole=False)
        assert (piece.ticket.batch, last) == (batch, True)


async def test_a_learner_that_gives_up_says_what_was_there_and_what_was_not():
    broker = broker_of(TWO)
    await put(broker, await broker.admit(0))
    await broker.admit(1)
    with pytest.raises(DeadlineError) as caught:
        await broker.take(0, 0, whole=True)
    assert str(caught.value) == (
        "waited 60 s for trajectories of batch 0 on learner rank 0: 1 of 2 pieces have arrived, "
        "1 rollouts are being collected; produced 1 = trained 0 + in flight 1 + 0 refused"
    )
    assert now() == 60.0


async def test_a_shard_that_gives_up_says_what_the_gate_waited_for():
    broker = broker_of(ONE, max_staleness=1, version=4)
    for _ in range(2):
        await put(broker, await broker.admit(0), ONE)
    with pytest.raises(DeadlineError) as caught:
        await broker.admit(0)
    assert str(caught.value) == (
        "waited 60 s for the gate to let shard 0 start: version 4 is published, max_staleness is 1, "
        "0 rollouts are being collected; produced 2 = trained 0 + in flight 2 + 0 refused"
    )


async def test_a_failure_ends_every_wait_with_its_error():
    broker = broker_of(ONE)
    await broker.admit(0)
    waits = [asyncio.create_task(wait) for wait in (broker.admit(0), broker.take(0, 0, whole=True))]
    await settle()
    broker.fail(ZeroDivisionError("cause"))
    for wait in waits:
        with pytest.raises(ZeroDivisionError, match="cause"):
            await wait


async def test_a_resumed_run_goes_on_with_its_version_and_its_books():
    books = Ledger(produced=7, trained=6, refused=Counter(stale=1))
    broker = broker_of(ONE, version=6, until=7, ledger=books)
    await train(broker, 6)
    assert await broker.admit(0) is None
    assert str(broker.ledger) == "produced 8 = trained 7 + in flight 0 + 1 refused (stale 1)"


async def test_staleness_is_noted_per_trajectory_when_it_has_been_trained():
    broker = broker_of(plan(total_envs=3, shards_per_worker=1), max_staleness=1, version=1)
    layout = plan(total_envs=3, shards_per_worker=1)
    await put(broker, await broker.admit(0), layout, oldest=-1)
    await put(broker, await broker.admit(0), layout, oldest=0)
    await broker.take(0, 1, whole=True)
    with pytest.raises(KeyError):
        broker.pop_trained(1)
    broker.publish(2)
    trained = broker.pop_trained(1)
    assert (trained.staleness.count, trained.staleness.mean, trained.env_steps) == (3, 1.0, 3)


async def test_batches_that_one_publication_closes_together_are_still_told_apart():
    broker = broker_of(ONE, max_staleness=1)
    for batch in (0, 1):
        await put(broker, await broker.admit(0), ONE)
        await broker.take(0, batch, whole=True)
    broker.publish(2)
    trained = [broker.pop_trained(batch) for batch in (0, 1)]
    assert [(batch.staleness.mean, batch.env_steps) for batch in trained] == [(0.0, 1), (1.0, 1)]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), lag=st.integers(1, 3), shards=st.integers(1, 3))
def test_weights_that_wait_for_the_rollouts_before_them_give_every_batch_the_same_lag(seed, lag, shards):
    layout, until, chance = plan(total_envs=shards, shards_per_worker=shards), 6, random.Random(seed)
    broker = broker_of(layout, max_staleness=lag, until=until, deadline_s=10_000.0)
    acting, acted = [0], {}

    async def collect(shard):
        while (ticket := await broker.admit(shard)) is not None:
            versions = []
            for _ in range(3):
                await asyncio.sleep(chance.choice((0.125, 1.0, 8.0)))
                versions.append(acting[0])
            acted.setdefault(ticket.batch, set()).update(versions)
            await put(broker, ticket, layout, oldest=min(versions), newest=max(versions))

    async def learn():
        for batch in range(until):
            await broker.take(0, batch, whole=True)
            await asyncio.sleep(chance.choice((0.125, 4.0, 32.0)))
            await broker.collected(batch + 1)
            acting[0] = batch + 1
            broker.publish(batch + 1)

    async def main():
        await asyncio.gather(learn(), *(collect(shard) for shard in range(shards)))

    run(main())
    assert acted == {batch: {max(0, batch - lag)} for batch in range(until)}


async def test_weights_that_wait_too_long_for_rollouts_to_end_say_for_which():
    broker = broker_of(ONE, max_staleness=1, deadline_s=8.0)
    await broker.admit(0)
    with pytest.raises(DeadlineError, match="all rollouts of batch 1 to be collected; produced 0"):
        await broker.collected(1)


async def test_rollouts_of_lost_shards_are_collected_again_by_successors_and_nothing_of_the_dead_counts():
    broker = broker_of(TWO, until=1)
    dead = await broker.admit(0)
    await put(broker, await broker.admit(1))
    assert await broker.shards_lost({0, 1}, "env worker died", 1) == 1
    assert (broker.ledger.produced, broker.ledger.refused["env worker died"]) == (2, 1)
    assert await broker.admit(0) is None
    again = await broker.admit(0, 1)
    assert again == replace(dead, generation=1)
    await put(broker, dead)
    assert broker.ledger.produced == 2
    await put(broker, again)
    pieces, last = await broker.take(0, 0, whole=True)
    assert (len(pieces), last) == (2, True)  # what it had handed over before it died counts
    broker.publish(1)
    assert (broker.ledger.trained, broker.ledger.in_flight) == (2, 0)


async def test_a_lost_shard_that_waits_at_the_gate_waits_no_longer():
    broker = broker_of(ONE)
    await broker.admit(0)
    waiting = asyncio.create_task(broker.admit(0))
    await settle()
    await broker.shards_lost({0}, "env worker died", 1)
    assert await waiting is None
    assert now() == 0.0


async def place_after(first_s, second_s):
    """The place that is handed out first in batch 1, where the rollouts of batch 0 took so many seconds."""
    broker = broker_of(TWO, any_place=True)
    for shard, seconds in enumerate((first_s, second_s)):
        started = await broker.admit(shard)
        await asyncio.sleep(seconds)
        await put(broker, started)
        await asyncio.sleep(100.0)
    await broker.take(0, 0, whole=True)
    broker.publish(1)
    return (await broker.admit(0)).place


async def test_the_place_whose_rollout_took_longest_is_handed_out_first():
    assert [await place_after(5.0, 1.0), await place_after(1.0, 5.0)] == [0, 1]


async def test_what_was_lost_is_collected_again_in_the_order_of_its_batches():
    broker = broker_of(ONE, max_staleness=2)
    first, *_ = [await broker.admit(0) for _ in range(3)]
    await broker.abandon(first, "env failed")
    await broker.admit(0)  # batch 0 again, after the others
    assert await broker.shards_lost({0}, "env worker died", 1) == 3
    assert [(await broker.admit(0, 1)).batch for _ in range(3)] == [0, 1, 2]


async def test_the_rest_of_a_batch_of_which_some_was_streamed_is_handed_over_at_once():
    layout = plan(total_envs=6, shards_per_worker=6, learner_ranks=2)
    broker = broker_of(layout)
    tickets = [await broker.admit(shard) for shard in (3, 4, 5)]  # those of rank 1
    await put(broker, tickets[0], layout)
    some, last = await broker.take(1, 0, whole=False)
    await put(broker, tickets[1], layout)
    with pytest.raises(DeadlineError, match="on learner rank 1: 2 of 3 pieces have arrived"):
        await broker.take(1, 0, whole=True)
    await put(broker, tickets[2], layout)
    pieces, last = await broker.take(1, 0, whole=True)
    assert last
    assert len(some) + len(pieces) == layout.pieces_per_rank


async def test_what_a_batch_was_made_of_is_said_once():
    broker = broker_of(ONE)
    await train(broker, 0)
    broker.pop_trained(0)
    await train(broker, 1)
    assert broker.pop_trained(1).env_steps == 1
    for batch in (0, 1):
        with pytest.raises(KeyError):
            broker.pop_trained(batch)


async def test_a_trained_batch_says_what_was_left_out_of_it():
    broker = broker_of(ONE)
    of = await broker.admit(0)
    await broker.put(of, [replace(piece(of), skipped_env_steps=3, skipped_decisions=2)])
    await broker.take(0, 0, whole=True)
    broker.publish(1)
    trained = broker.pop_trained(0)
    assert (trained.skipped_env_steps, trained.skipped_decisions) == (3, 2)
    shares = replace(trained, env_steps=12).skipped_shares(decisions=5)
    assert shares == {"env_steps": 0.25, "decisions": 0.4}


async def test_a_rollout_may_be_refused_eight_times_and_the_ninth_ends_the_run():
    assert MAX_REFUSALS == 8
    broker = broker_of(ONE, max_staleness=1, version=5)
    for _ in range(MAX_REFUSALS):
        await put(broker, await broker.admit(0), ONE, oldest=2)
    said = r"batch 5 was refused 9 times.*version 5 is published.*made by version 2"
    with pytest.raises(RuntimeError, match=said):
        await put(broker, await broker.admit(0), ONE, oldest=2)
    assert broker.ledger.refused == {"stale": MAX_REFUSALS + 1}


@pytest.mark.parametrize("any_place", [True, False])
async def test_shards_are_joined_between_two_batches_while_the_learner_waits_for_the_second(any_place):
    single = plan(total_envs=8, shards_per_worker=8)
    joined = single.joined(2)
    broker = broker_of(single, max_staleness=1, until=3, any_place=any_place)
    tickets = [await broker.admit(shard) for shard in range(8)]
    assert broker.pause() == 1
    late = asyncio.create_task(broker.admit(0))
    assert await late is None
    with pytest.raises(RuntimeError, match="8 rollouts are still being collected"):
        broker.go_on(joined)
    for ticket in tickets:
        await put(broker, ticket, single)
    # As a learner that prefetches: the first batch is not trained yet, and the second has not begun.
    await broker.take(0, 0, whole=True)
    waiting = asyncio.create_task(broker.take(0, 1, whole=True))
    await settle()
    broker.go_on(joined)
    for shard in range(2):
        await put(broker, ticket := await broker.admit(shard), joined)
        assert (ticket.batch, ticket.version) == (1, 0)
    pieces, last = await waiting
    assert last
    assert [piece.size for piece in pieces] == [1] * 8
    assert {(piece.ticket.place, piece.part) for piece in pieces} == {
        (p, q) for p in range(2) for q in range(4)
    }
    broker.publish(1)
    broker.publish(2)
    assert (broker.ledger.trained, broker.ledger.in_flight) == (16, 0)
