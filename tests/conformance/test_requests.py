"""Requests and their answers, for all who carry them from a `PolicyPort` to a `RequestPort`."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.loops.inference import serve_policy
from tests.conformance.requests import (
    Channel,
    InProcess,
    act,
    answer,
    ask,
    dynamic,
    five_decisions,
    seen,
)
from tests.loops.virtual import now, run, settle
from tests.making import plan, run_settings

CARRIERS = {"in process": InProcess, "channel": Channel}
carriers = pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)


@carriers
async def test_requests_of_one_turn_are_one_batch_and_each_gets_its_answer(carrier):
    requests = carrier(dynamic())
    askers = ask(requests.client(), 3, 4, 5)
    assert await answer(requests.server()) == [3, 4, 5]
    assert [await seen(asker) for asker in askers] == [3, 4, 5]


async def raising(answers):
    raise ZeroDivisionError


async def too_few(answers):
    answers.append("only one")


async def cancelled(answers):
    raise asyncio.CancelledError


@carriers
@pytest.mark.parametrize(
    ("forward", "error", "words"),
    [
        (raising, ZeroDivisionError, None),
        (too_few, ValueError, "1 answers were given to 2 requests"),
        (cancelled, asyncio.CancelledError, None),
    ],
)
async def test_a_forward_pass_that_fails_fails_its_requesters_and_nobody_else(carrier, forward, error, words):
    requests = carrier(dynamic(max_size=2))
    server = requests.server()
    first, second, third = ask(requests.client(), 0, 1, 2)
    batch = await server.take()
    with pytest.raises(error, match=words):
        async with server.answering(batch) as answers:
            await forward(answers)
    for asker in (first, second):
        with pytest.raises(PeerError, match=r"failed$"):
            await asker
    await settle()
    assert not third.done()
    await answer(server)
    assert await seen(third) == 2


@carriers
async def test_a_request_that_cannot_be_answered_fails_alone(carrier):
    requests = carrier(dynamic())
    server, (first, second) = requests.server(), ask(requests.client(), 0, 1)
    batch = await server.take()
    async with server.answering(batch) as answers:
        answers.extend([PeerError("it cannot be read"), *(await act(batch))[1:]])
    with pytest.raises(PeerError):
        await first
    assert await seen(second) == 1


@carriers
async def test_a_request_that_no_batch_can_hold_is_an_error_of_its_asker_and_of_nobody_else(carrier):
    requests = carrier(dynamic())
    client = requests.client()
    (small,), (large,) = ask(client, 0), ask(client, 1, size=9)
    with pytest.raises(ValueError, match="9 environments exceeds max_batch_size=8"):
        await large
    assert await answer(requests.server()) == [0]
    assert await seen(small) == 0


@carriers
async def test_a_rank_that_nobody_asks_in_time_says_so(carrier):
    with pytest.raises(DeadlineError, match="waited 60 s for a request to inference rank 3"):
        await carrier(dynamic()).server(3).take()
    assert now() == 60.0


@carriers
@pytest.mark.parametrize("mode", ["train", "score"])
async def test_no_rank_is_given_what_nobody_waits_for_any_more(carrier, mode):
    requests = carrier(dynamic())
    first, second = ask(requests.client(), 0, 1, mode=mode)
    await settle()
    first.cancel()
    await asyncio.sleep(1.0)
    assert await answer(requests.server()) == [1]
    assert await seen(second) == 1
    assert requests.broker.waiting == 0


@carriers
async def test_what_a_lost_rank_had_taken_is_asked_again_and_answered_by_another(carrier):
    requests = carrier(dynamic(max_size=2))
    dead, other, client = requests.server(0), requests.server(1), requests.client()
    askers = ask(client, 0, 1)
    await dead.take()
    askers += ask(client, 2)
    await settle()
    await requests.rank_lost(0, 1)
    assert await dead.take() is None
    await settle()
    assert await answer(other) == [2, 0]
    successor = requests.server(0, generation=1)
    (pending,) = again = await successor.take()
    assert (pending.shard, pending.request.again) == (1, True)
    async with successor.answering(again) as answers:
        answers.extend(await act(again))
    assert [await seen(asker) for asker in askers] == [0, 1, 2]
    assert await requests.asked_again() == 2


@carriers
async def test_those_who_asked_are_told_that_their_worker_was_lost_and_its_successor_is_answered(carrier):
    requests = carrier(dynamic(max_size=1))
    server, client = requests.server(), requests.client()
    lost, other = ask(client, 0, 1)
    taken = await server.take()
    await requests.shards_lost({0}, 1)
    with pytest.raises(PeerError, match="the env worker that asked was lost"):
        await lost
    async with server.answering(taken) as answers:  # the rank cannot know
        answers.extend(await act(taken))
    (late,) = ask(client, 0)
    with pytest.raises(PeerError, match="shard 0 asked for actions after its env worker was lost"):
        await late
    assert await answer(server) == [1]
    assert await seen(other) == 1
    (asker,) = ask(requests.client(generation=1), 0)
    assert await answer(server) == [0]
    assert await seen(asker) == 0


@carriers
@pytest.mark.parametrize("ends", ["asks", "ends", "fails"])
async def test_without_level_2_a_batch_waits_for_a_shard_in_flight_until_it_asks_or_ends(carrier, ends):
    layout = plan(env_workers=2, shards_per_worker=1)
    requests = carrier(run_settings(asynchrony=AsyncConfig(), plan=layout, max_batch_size=2))
    client, asked = requests.client(), []
    taking = asyncio.create_task(requests.server().take())
    async with client.rollout(0):
        try:
            async with client.rollout(1):
                asked += ask(client, 0)
                await asyncio.sleep(50.0)
                assert not taking.done()
                asked += ask(client, 1) if ends == "asks" else []
                await settle()
                if ends == "fails":
                    raise KeyError
        except KeyError:
            pass
        assert [pending.shard for pending in await taking] == ([0, 1] if ends == "asks" else [0])
    assert now() == 50.0
    for asker in asked:
        asker.cancel()


@carriers
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 4),
    nodes=st.sampled_from(["a", "ab", "abc"]),
    workers=st.integers(1, 3),
    shards=st.integers(1, 5),
    max_size=st.integers(3, 9),
    max_wait=st.sampled_from([0.0, 0.5]),
)
def test_under_any_interleaving_every_request_is_answered_once_with_its_own_answer(
    carrier, seed, ranks, nodes, workers, shards, max_size, max_wait
):
    rng, served = random.Random(seed), []

    async def main():
        requests = carrier(dynamic(max_size=max_size, max_wait=max_wait, deadline_s=1e6))

        async def acting(batch):
            assert sum(pending.size for pending in batch) <= max_size
            await asyncio.sleep(rng.choice([0.0, 0.125, 2.0]))
            served.extend(pending.request.number for pending in batch)
            return await act(batch)

        def serve(rank):
            server = requests.server(rank, node=nodes[rank % len(nodes)])
            return serve_policy(requests=server, policy=SimpleNamespace(act=acting))

        servers = [asyncio.create_task(serve(rank)) for rank in range(ranks)]
        clients = [requests.client(node=nodes[worker % len(nodes)]) for worker in range(workers)]
        await asyncio.gather(
            *(five_decisions(clients[number % workers], number, rng) for number in range(workers * shards))
        )
        await requests.close()
        await asyncio.gather(*servers)
        assert requests.broker.waiting == 0

    run(main())
    assert len(served) == len(set(served)) == 5 * workers * shards
