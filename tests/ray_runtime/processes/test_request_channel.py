"""The sides of a request channel and its process, connected as they are, in one event loop.

What every carrier of requests has to do is in tests/conformance/test_requests.py.
"""

import asyncio
import pickle
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.ray_runtime.processes import request_clients, request_server
from rlinf_async.ray_runtime.processes.reading_pauses import MAX_PAUSE_S
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from rlinf_async.wire import connection
from rlinf_async.wire.connection import Connection
from tests.conformance.requests import Channel, act, answer, ask, dynamic, observation
from tests.loops.virtual import run, settle
from tests.making import plan, request, run_settings


def end_connections(*sides):
    """As if their processes had died, or that of the channel."""
    for side in sides:
        way = side if isinstance(side, RequestClient) else side._ways[0]
        (way._channel if way is side else way.channel)._connection.abort()


# TCP takes real time.
async def test_large_observations_stay_in_the_memory_of_the_asker(monkeypatch):
    sent = []
    monkeypatch.setattr(
        Connection,
        "send",
        lambda self, *message, send=Connection.send: (sent.append(message), send(self, *message)),
    )
    channel = Channel()
    client, server = channel.client(), channel.server()
    for number in (3, 4):
        payload = {"image": torch.full((400, 400), number, dtype=torch.uint8)}
        asker = asyncio.create_task(client.act(request(0, payload=payload)))
        await answer(server)
        assert int((await asker)["seen"]) == number
    assert [kind for kind, *_ in sent].count("ask") == 2
    assert len(pickle.dumps(sent)) < 10_000


# TCP takes real time.
@pytest.mark.parametrize("far", [False, pytest.param(True, marks=pytest.mark.real_time)])
async def test_no_answer_passes_the_channel(monkeypatch, far):
    channel, passed = Channel(far=far), []

    def noted(method, size_of):
        def note(self, *data, method=method):
            if self._receive == channel.worker._receive:
                passed.append(size_of(data))
            return method(self, *data)

        return note

    received = noted(Connection.data_received, lambda data: len(data[0]))
    monkeypatch.setattr(Connection, "data_received", received)
    for send in (Connection.send, Connection.send_now):
        monkeypatch.setattr(Connection, send.__name__, noted(send, lambda data: len(pickle.dumps(data))))
    client, server = channel.client(), channel.server()
    for number in range(3):
        (asker,) = ask(client, number)
        batch = await server.take()
        async with server.answering(batch) as answers:
            answers.append({"seen": torch.full((100_000,), number)})
        assert (await asker)["seen"].tolist() == [number] * 100_000
    assert len(passed) >= 9
    assert sum(passed) < 5_000


@pytest.mark.real_time
@pytest.mark.parametrize("far", [False, True])
async def test_what_is_asked_with_comes_along_on_the_node_of_the_channel_only(far):
    channel = Channel(far=far)
    server, (asker,) = channel.server(), ask(channel.client(), 3)
    (pending,) = await server.take()
    assert isinstance(pending.request.payload, list if far else bytes)
    async with server.answering([pending]) as answers:
        answers.extend(await act([pending]))
    assert int((await asker)["seen"]) == 3


async def test_answers_that_are_too_long_fail_their_requesters_and_the_rank_says_why(monkeypatch):
    channel = Channel()
    server = channel.server()
    askers = ask(channel.client(), 0, 1)
    batch = await server.take()
    monkeypatch.setattr(connection, "LONGEST_MESSAGE_BYTES", 2000)
    with pytest.raises(ValueError, match=r"a message of \d+ bytes is longer than 2000"):
        async with server.answering(batch) as answers:
            answers.extend([{"seen": torch.zeros(1000)}] * 2)
    for asker in askers:
        with pytest.raises(PeerError, match="inference rank 0 failed"):
            await asker


async def test_a_channel_that_dies_fails_everybody_who_waits_and_who_asks_later():
    channel = Channel()
    client, server = channel.client(), channel.server()
    waits = [*ask(client, 0, 1), asyncio.create_task(server.take())]
    await settle()
    end_connections(client, server)
    for wait in waits[:2]:
        with pytest.raises(PeerError, match="the request channel has ended the connection"):
            await wait
    (later,) = ask(client, 3)
    with pytest.raises(PeerError, match="the request channel has ended the connection"):
        await later
    with pytest.raises(PeerError, match="the request channel has ended the connection"):
        await server.take()
    await asyncio.wait(waits)


async def test_a_channel_that_is_dead_before_somebody_connects_is_an_error_of_his():
    channel = Channel()

    async def dead(node):
        raise ConnectionError("the channel has died")

    channel.address = SimpleNamespace(remote=dead)
    (asker,) = ask(RequestClient({"": channel}), 0)
    with pytest.raises(ConnectionError, match="the channel has died"):
        await asker
    with pytest.raises(ConnectionError, match="the channel has died"):
        await RequestServer({"": channel}, rank=0).take()


async def test_nothing_is_kept_of_what_was_answered():
    channel = Channel()
    client = channel.client()
    (asker,) = ask(client, 0)
    await answer(channel.server())
    await asker
    await settle()
    assert client._channel._waits == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_channel_keeps_a_request_until_its_asker_says_anything_more():
    channel = Channel()
    client, server, book = channel.client(), channel.server(), channel.worker._broker._open_requests
    async with client.rollout(0):
        for _ in range(2):
            (asker,) = ask(client, 0)
            await answer(server)
            await asker
            await settle()
            assert len(book) == 1
    await asyncio.sleep(MAX_PAUSE_S)
    await settle()
    assert book == {}
    await channel.worker.rank_lost(0, 1)
    assert (await channel.worker.pop_batches())["again"] == 0


async def test_an_answer_that_is_lost_on_the_way_is_an_error_with_counts_in_time(monkeypatch):
    """As where a link between a rank and an asker is cut, and both reach the channel."""
    channel = Channel()
    server, (asker,) = channel.server(), ask(channel.client(), 7)
    monkeypatch.setattr(server._askers, "at", lambda address: SimpleNamespace(cast=lambda *message: None))
    assert await answer(server) == [7]
    with pytest.raises(DeadlineError, match="0 requests wait, 1 were taken and are not known to be answered"):
        await asker


async def test_both_sides_say_where_they_run_and_neighbours_meet(monkeypatch):
    channel = Channel()
    sides = {}
    for node in "ab":
        for module in (request_clients, request_server):
            monkeypatch.setattr(module, "this_node", lambda node=node: node)
        server = channel.server("ab".index(node))
        sides[node] = (channel.client(), asyncio.create_task(server.take()))
        await settle()
    for node in "ba":
        client, waiting = sides[node]
        asker = ask(client, "ab".index(node))[0]
        (pending,) = await waiting
        assert pending.shard == "ab".index(node)
        asker.cancel()


@pytest.mark.parametrize("has_asked", [True, False], ids=["after a request", "before it"])
async def test_a_take_that_fails_in_the_channel_is_an_error_of_the_rank(monkeypatch, has_asked):
    channel = Channel()
    client, server = channel.client(), channel.server()
    asker = ask(client, 7)[0] if has_asked else None
    await settle()

    def failing(*_, **__):
        raise ZeroDivisionError("of the channel")

    monkeypatch.setattr(channel.worker._broker, "take_now", failing)
    with pytest.raises(ZeroDivisionError, match="of the channel"):
        await asyncio.wait_for(server.take(), timeout=5)
    monkeypatch.undo()
    if asker is None:
        (asker,) = ask(client, 7)
    assert await answer(server) == [7]
    assert int((await asker)["seen"]) == 7


async def test_the_failure_of_a_rank_that_was_lost_is_nobodys():
    channel = Channel()
    dead, other = channel.server(0), channel.server(1)
    (asker,) = ask(channel.client(), 7)
    batch = await dead.take()
    await channel.rank_lost(0, 1)
    with pytest.raises(ZeroDivisionError):
        async with dead.answering(batch):
            raise ZeroDivisionError
    assert await answer(other) == [7]
    assert int((await asker)["seen"]) == 7


async def test_nor_of_who_waits_for_the_rank_that_has_it_now():
    channel = Channel()
    dead, other = channel.server(0), channel.server(1)
    (asker,) = ask(channel.client(), 7)
    batch = await dead.take()
    await channel.worker.rank_lost(0, 1)
    again = await other.take()
    with pytest.raises(ZeroDivisionError):
        async with dead.answering(batch):
            raise ZeroDivisionError
    await settle()
    async with other.answering(again) as answers:
        answers.extend(await act(again))
    assert int((await asker)["seen"]) == 7


async def test_each_answer_of_a_batch_goes_to_the_process_that_has_asked():
    channel = Channel(dynamic())
    server = channel.server()
    askers = [ask(channel.client(), number)[0] for number in (3, 5)]
    await settle()
    assert sorted(await answer(server)) == [3, 5]
    assert [int((await asker)["seen"]) for asker in askers] == [3, 5]


async def test_an_answer_is_confirmed_once(monkeypatch):
    confirmed = []

    def note(self, *message, send=Connection.send):
        confirmed.extend(message[-1] if message[0] in ("ask", "settled") else [])
        return send(self, *message)

    monkeypatch.setattr(Connection, "send", note)
    channel = Channel()
    client, server = channel.client(), channel.server()
    async with client.rollout(0):
        for _ in range(3):
            (asker,) = ask(client, 0)
            await answer(server)
            await asker
    assert len(confirmed) == len(set(confirmed)) == 3


async def test_who_gives_up_says_so_at_once():
    channel = Channel()
    (asker,) = ask(channel.client(), 0)
    await settle()
    assert len(channel.worker._broker._open_requests) == 1
    asker.cancel()
    await asyncio.sleep(MAX_PAUSE_S)
    await settle()
    assert channel.worker._broker._open_requests == {}


async def test_an_answer_that_a_rank_had_sent_when_it_died_and_that_never_came_is_made_by_another(
    monkeypatch,
):
    channel = Channel()
    dead, other = channel.server(0), channel.server(1)
    (asker,) = ask(channel.client(), 7)
    monkeypatch.setattr(dead._askers, "at", lambda address: SimpleNamespace(cast=lambda *message: None))
    assert await answer(dead) == [7]
    await settle()
    assert not asker.done()
    await channel.worker.rank_lost(0, 1)
    assert await answer(other) == [7]
    assert int((await asker)["seen"]) == 7


@pytest.mark.parametrize("late_is_first", [True, False])
async def test_of_two_answers_the_first_counts_also_if_its_rank_was_declared_lost(late_is_first):
    channel = Channel()
    client, ranks = channel.client(), [channel.server(0), channel.server(1)]
    (asker,) = ask(client, 7)
    batches = [await ranks[0].take()]
    await channel.worker.rank_lost(0, 1)
    batches.append(await ranks[1].take())
    for number in (0, 1) if late_is_first else (1, 0):
        async with ranks[number].answering(batches[number]) as answers:
            answers.append({"version": number})
        await settle()
    assert (await asker)["version"] == (0 if late_is_first else 1)
    (asker,) = ask(client, 7)
    assert await answer(ranks[1]) == [7]
    assert int((await asker)["seen"]) == 7
    assert len(channel.worker._broker._open_requests) == 1


async def test_who_reads_what_was_asked_twice_never_finds_the_next_observation_in_its_place():
    channel = Channel()
    client, late, other = channel.client(), channel.server(0), channel.server(1)

    def asking(number):
        payload = observation(number, side=400)
        return asyncio.create_task(client.act(request(0, payload=payload)))

    asker = asking(3)
    batch = await late.take()
    answered = await act(batch)
    await channel.worker.rank_lost(0, 1)
    again = await other.take()
    async with late.answering(batch) as answers:
        answers.extend(answered)
    assert int((await asker)["seen"]) == 3
    asker = asking(4)
    await settle()
    async with other.answering(again) as answers:
        answers.extend(await act(again))
        assert [type(one) for one in answers] == [PeerError]
    assert await answer(other) == [0]
    assert int((await asker)["seen"]) == 4


class Losses:
    """Shards that ask, and ranks that are lost before they have answered, or while their answers are on
    their way; those may arrive all the same.
    """

    lives = 4

    def __init__(self, seed, side):
        self.chance, self.side = random.Random(seed), side
        self.told, self.late = Counter(), []

    async def nap(self):
        await asyncio.sleep(self.chance.choice([0.0, 0.125, 2.0]))

    async def shard(self, client, number):
        for _ in range(2):
            async with client.rollout(number):
                for step in range(4):
                    await self.nap()
                    wanted = (7 * number + step) % 256
                    payload = observation(wanted, side=self.side)
                    assert int((await client.act(request(number, payload=payload)))["seen"]) == wanted
                    self.told[number] += 1

    async def rank(self, channel, number):
        for generation in range(self.lives):
            server = channel.server(number, generation=generation)
            while (batch := await server.take()) is not None:
                await self.nap()
                answered = await act(batch)
                if generation + 1 == self.lives or self.chance.random() < 0.8:
                    await self.send(server, batch, answered)
                    continue
                for _ in range(self.chance.choice([0, 1, 2])):
                    self.late.append(asyncio.create_task(self.send(server, batch, answered, late=True)))
                await channel.worker.rank_lost(number, generation + 1)
                break
            else:
                return

    async def send(self, server, batch, answered, *, late=False):
        if late:
            await self.nap()
        async with server.answering(batch) as answers:
            answers.extend(answered)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 3),
    shards=st.integers(3, 5),
    side=st.sampled_from([2, 128]),
    level_2=st.booleans(),
)
def test_whichever_rank_is_lost_at_whatever_time_everybody_gets_the_answer_to_his_own_request(
    seed, ranks, shards, side, level_2
):
    losses = Losses(seed, side)

    async def main():
        layout = plan(total_envs=shards, env_workers=shards, shards_per_worker=1, inference_ranks=ranks)
        off = AsyncConfig.from_mapping({"advanced": {"deadline_s": 1e6}})
        of = dynamic(deadline_s=1e6) if level_2 else run_settings(asynchrony=off, plan=layout)
        channel = Channel(of)
        served = [asyncio.create_task(losses.rank(channel, number)) for number in range(ranks)]
        client = channel.client()
        await asyncio.gather(*(losses.shard(client, number) for number in range(shards)))
        await settle()
        assert channel.worker._broker._open_requests == {}
        await channel.worker.close_requests()
        await asyncio.gather(*served, *losses.late)

    run(main())
    assert losses.told == dict.fromkeys(range(shards), 8)


async def test_what_a_rank_had_taken_whose_connection_ends_is_answered_by_its_successor():
    channel = Channel()
    dead = channel.server(0)
    (asker,) = ask(channel.client(), 7)
    await dead.take()
    end_connections(dead)
    await settle()
    assert not asker.done()
    await channel.worker.rank_lost(0, 1)
    successor = channel.server(generation=1)
    assert await answer(successor) == [7]
    assert int((await asker)["seen"]) == 7
