"""The sides of a request channel, with its process near at hand instead of at the other end of Ray."""

import asyncio
import pickle
import random
from types import SimpleNamespace

import pytest
import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.loops.inference import serve_policy
from rlinf_async.ray_runtime import request_channel
from rlinf_async.ray_runtime.memory import MemoryPool
from rlinf_async.ray_runtime.request_channel import (
    MAX_CALLS,
    RequestChannel,
    RequestClient,
    RequestServer,
)
from rlinf_async.ray_runtime.wire import fetch
from tests.loops.virtual import now, run, settle
from tests.making import request, run_settings


class Channel:
    """Ray's handle of a channel process: calls are tasks, and what they carry is pickled. Counts calls."""

    def __init__(self, *, max_size=8, max_wait=0.0, deadline_s=60.0):
        block = {
            "mode": "rollout",
            "advanced": {"deadline_s": deadline_s},
            "rollout": {"max_wait_ms": 1000 * max_wait},
        }
        asynchrony = AsyncConfig.from_mapping(block)
        self.worker = RequestChannel(run_settings(asynchrony=asynchrony, max_batch_size=max_size))
        self.calls = []
        self.delay = lambda: 0.0

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: asyncio.create_task(self._call(name, arguments)))

    async def _call(self, name, arguments):
        self.calls.append((name, arguments))
        await asyncio.sleep(self.delay())
        result = await getattr(self.worker, name)(*pickle.loads(pickle.dumps(arguments)))
        await asyncio.sleep(self.delay())
        return pickle.loads(pickle.dumps(result))

    def count(self, name):
        return sum(called == name for called, _ in self.calls)


def observation(number):
    return {"image": torch.full((2, 2), number, dtype=torch.uint8)}


def ask(client, *shards, **fields):
    return [
        asyncio.create_task(client.act(request(shard, payload=observation(shard), **fields)))
        for shard in shards
    ]


async def act(batch):
    """A policy that tells each request the number that it has seen."""
    payloads = await fetch([pending.request.payload for pending in batch])
    return [{"seen": payload["image"][0, 0]} for payload in payloads]


async def answer(server):
    """Serve one batch; returns its shards."""
    batch = await server.take()
    async with server.answering(batch) as answers:
        answers.extend(await act(batch))
    return [pending.shard for pending in batch]


def sides(channel, rank=0):
    return RequestClient(channel, counts_rollouts=False), RequestServer(channel, rank=rank)


def test_requests_of_one_turn_travel_together_and_so_do_their_answers():
    async def main():
        channel = Channel()
        client, server = sides(channel)
        askers = ask(client, 3, 4, 5)
        assert await answer(server) == [3, 4, 5]
        assert [int(one["seen"]) for one in await asyncio.gather(*askers)] == [3, 4, 5]
        assert channel.count("exchange") == 1

    run(main())


def test_answers_leave_with_the_call_that_takes_the_next_batch():
    async def main():
        channel = Channel(max_size=1)
        client, server = sides(channel)
        askers = ask(client, 0, 1)
        await answer(server)
        await askers[0]
        await answer(server)
        await askers[1]
        assert [channel.count(name) for name in ("take_requests", "answer_and_take")] == [1, 2]

    run(main())


def test_large_observations_stay_in_the_memory_that_both_sides_see():
    async def main():
        channel = Channel()
        client = RequestClient(channel, counts_rollouts=False, memory=MemoryPool())
        server = RequestServer(channel, rank=0)
        for number in (3, 4):
            payload = {"image": torch.full((400, 400), number, dtype=torch.uint8)}
            asker = asyncio.create_task(client.act(request(0, payload=payload)))
            await answer(server)
            assert int((await asker)["seen"]) == number
        assert len(pickle.dumps([arguments for _, arguments in channel.calls])) < 4000

    run(main())


def test_an_answer_does_not_wait_for_those_that_were_asked_with_it():
    async def main():
        client, server = sides(Channel(max_size=1))
        first, second = ask(client, 0, 1)
        await answer(server)
        await first
        assert not second.done()
        await answer(server)
        await second

    run(main())


def test_no_more_than_two_calls_of_a_worker_are_under_way():
    async def main():
        channel = Channel(max_size=64)
        channel.delay = lambda: 1.0
        client, server = sides(channel)
        askers = []
        for shard in range(10):
            askers += ask(client, shard)
            await asyncio.sleep(0.125)
            assert len(client._calls) <= MAX_CALLS
        sent = [len(arguments[3]) for name, arguments in channel.calls if name == "exchange"]
        assert sent == [1, 1]
        serving = asyncio.create_task(serve(server))
        await asyncio.gather(*askers)
        channel.worker._broker.close()
        await serving
        assert channel.count("exchange") < 10

    run(main())


async def serve(server):
    await serve_policy(requests=server, policy=SimpleNamespace(act=act))


def test_what_is_written_to_an_answer_is_nobody_elses():
    async def main():
        client, server = sides(Channel())
        (asker,) = ask(client, 1)
        await answer(server)
        (await asker)["seen"].zero_()

    run(main())


def test_a_failing_forward_pass_fails_its_requesters_and_nobody_else():
    async def main():
        client, server = sides(Channel(max_size=2))
        first, second, third = ask(client, 0, 1, 2)
        batch = await server.take()
        with pytest.raises(ZeroDivisionError):
            async with server.answering(batch):
                raise ZeroDivisionError
        for asker in (first, second):
            with pytest.raises(PeerError, match="inference rank 0 failed"):
                await asker
        await answer(server)
        assert int((await third)["seen"]) == 2

    run(main())


def test_a_policy_that_answers_too_few_fails_its_requesters():
    async def main():
        client, server = sides(Channel())
        askers = ask(client, 0, 1)
        batch = await server.take()
        with pytest.raises(ValueError, match="1 answers were given to 2 requests"):
            async with server.answering(batch) as answers:
                answers.append("only one")
        for asker in askers:
            with pytest.raises(PeerError):
                await asker

    run(main())


def test_an_answer_that_does_not_come_in_time_is_an_error_with_counts():
    async def main():
        client, server = sides(Channel(max_size=1, deadline_s=60.0))
        first, second = ask(client, 0, 1)
        await server.take()
        with pytest.raises(DeadlineError, match="shard 0 waited 60 s for actions: 1 requests wait, 1 are"):
            await first
        with pytest.raises(DeadlineError, match="shard 1"):
            await second
        assert now() == 60.0

    run(main())


def test_a_channel_that_dies_fails_everybody_who_waits_and_who_asks_later():
    async def main():
        channel = Channel()
        client, _ = sides(channel)
        askers = ask(client, 0, 1)
        await settle()

        async def die(*arguments):
            raise ConnectionError("the channel has died")

        channel.worker.exchange = die
        askers += ask(client, 2)
        for asker in askers:
            with pytest.raises(ConnectionError, match="the channel has died"):
                await asker
        (later,) = ask(client, 3)
        with pytest.raises(ConnectionError):
            await later

    run(main())


def test_asking_after_inference_has_closed_is_an_error():
    async def main():
        channel = Channel()
        client, _ = sides(channel)
        channel.worker._broker.close()
        (asker,) = ask(client, 3)
        with pytest.raises(PeerError, match="shard 3 asked for actions after inference had closed"):
            await asker

    run(main())


def test_a_shard_that_gives_up_does_not_disturb_the_others():
    async def main():
        client, server = sides(Channel())
        first, second = ask(client, 0, 1)
        await settle()
        first.cancel()
        await answer(server)
        assert int((await second)["seen"]) == 1

    run(main())


def test_a_channel_keeps_nothing_of_a_worker_that_waits_for_nothing():
    async def main():
        channel = Channel()
        client, server = sides(channel)
        (asker,) = ask(client, 0)
        await answer(server)
        await asker
        await settle()
        assert channel.worker._mailboxes == {}
        assert client._unanswered == {}

    run(main())


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 3),
    workers=st.integers(1, 3),
    shards=st.integers(1, 5),
    max_size=st.integers(1, 6),
    max_wait=st.sampled_from([0.0, 0.5]),
)
def test_however_calls_overtake_each_other_everybody_gets_the_answer_to_his_own_request(
    seed, ranks, workers, shards, max_size, max_wait
):
    rng = random.Random(seed)

    async def shard(client, number):
        for step in range(5):
            await asyncio.sleep(rng.choice([0.0, 0.125, 1.0, 5.0]))
            wanted = (7 * number + step) % 256
            answered = await client.act(request(number, payload=observation(wanted)))
            assert int(answered["seen"]) == wanted

    async def main():
        channel = Channel(max_size=max_size, max_wait=max_wait, deadline_s=1e6)
        channel.delay = lambda: rng.choice([0.0, 0.0, 0.125, 2.0])
        servers = [asyncio.create_task(serve(RequestServer(channel, rank=rank))) for rank in range(ranks)]
        clients = [RequestClient(channel, counts_rollouts=False) for _ in range(workers)]
        await asyncio.gather(
            *(
                shard(client, worker * shards + one)
                for worker, client in enumerate(clients)
                for one in range(shards)
            )
        )
        channel.worker._broker.close()
        await asyncio.gather(*servers)
        await asyncio.gather(*(call for client in clients for call in client._calls))
        assert channel.worker._mailboxes == {}

    run(main())


def test_both_sides_say_where_they_run_and_neighbours_meet(monkeypatch):
    async def main():
        channel, sides = Channel(), {}
        for node in "ab":
            monkeypatch.setattr(request_channel, "this_node", lambda node=node: node)
            server = RequestServer(channel, rank="ab".index(node))
            sides[node] = (RequestClient(channel, counts_rollouts=False), asyncio.create_task(server.take()))
        await settle()
        for node in "ba":
            client, waiting = sides[node]
            asker = ask(client, "ab".index(node))[0]
            (pending,) = await waiting
            assert pending.shard == "ab".index(node)
            asker.cancel()

    run(main())


def test_an_answer_that_is_lost_with_its_rank_is_asked_for_again(monkeypatch):
    lost = [True, False]

    async def fetching(payloads):
        if lost.pop(0):
            raise ray.exceptions.OwnerDiedError("", None, "")
        return await fetch(payloads)

    async def main():
        channel = Channel()
        client, server = sides(channel)
        (asker,) = ask(client, 3)
        await answer(server)
        await answer(server)
        assert int((await asker)["seen"]) == 3
        assert channel.count("exchange") == 2

    monkeypatch.setattr(request_channel, "fetch", fetching)
    run(main())


def test_what_a_lost_rank_had_taken_is_answered_by_another_and_its_own_answer_does_not_count():
    async def main():
        channel = Channel()
        client, dead = sides(channel)
        other = RequestServer(channel, rank=1)
        (asker,) = ask(client, 7)
        batch = await dead.take()
        await channel.worker.rank_lost(0, 1)
        async with dead.answering(batch) as answers:
            answers.append({"seen": torch.tensor(0)})
        assert await dead.take() is None
        await dead._fail([pending.number for pending in batch])
        assert await answer(other) == [7]
        assert int((await asker)["seen"]) == 7
        assert (await channel.worker.pop_batches())["again"] == 1

    run(main())


def test_a_channel_keeps_nothing_of_a_worker_that_was_lost():
    async def main():
        channel = Channel()
        client, server = sides(channel)
        asker, *_ = ask(client, 0)
        await server.take()
        await channel.worker.shards_lost([0], 1)
        with pytest.raises(PeerError, match="env worker that asked was lost"):
            await asker
        late, *_ = ask(client, 0)
        with pytest.raises(PeerError, match="after its env worker was lost"):
            await late
        await settle()
        assert channel.worker._mailboxes == {}

    run(main())
