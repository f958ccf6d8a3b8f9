"""A request channel leaves the requests of its node unread while no rank waits, and reads them together."""

import asyncio

import pytest

from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.ray_runtime.processes import reading_pauses, request_channel
from rlinf_async.ray_runtime.processes.flat_requests import flattened, packed
from rlinf_async.wire.connection import Connection
from tests.conformance.requests import Channel, answer, ask, dynamic, observation
from tests.loops.virtual import settle
from tests.making import request

FOR_EVER_S = 1e6


@pytest.fixture
def reads(monkeypatch):
    """The connections that have read, once for each read."""
    heard = []

    def noted(self, data, read=Connection.data_received):
        heard.append(self)
        return read(self, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    return heard


async def served_once(channel, client):
    """A rank that has answered a request, so that the channel knows the asker, and waits no more."""
    server = channel.server()
    (first,) = ask(client, 0)
    assert await answer(server) == [0]
    await first
    return server


@pytest.mark.real_time
async def test_requests_that_come_while_no_rank_waits_are_read_together(monkeypatch, reads):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel()
    client = channel.client()
    server = await served_once(channel, client)
    reads.clear()
    askers = []
    for shard in range(1, 7):
        askers += ask(client, shard)
        await settle()
    assert reads == []
    assert channel.broker.waiting == 0
    assert await answer(server) == [1, 2, 3, 4, 5, 6]
    await asyncio.gather(*askers)
    of_askers = [one for one in reads if one._receive == channel.worker._receive]
    assert len(of_askers) == 2  # the take, and all requests


@pytest.mark.real_time
async def test_a_rank_that_always_finds_requests_leaves_their_socket_unwatched(monkeypatch):
    channel = Channel()
    client = channel.client()
    server = await served_once(channel, client)
    watched = []
    monkeypatch.setattr(Connection, "resume", lambda self: watched.append(self))
    for _ in range(3):
        askers = ask(client, 1, 2)
        await settle()
        assert await answer(server) == [1, 2]
        await asyncio.gather(*askers)
    assert watched == []


class Rank:
    """A connection that keeps the shards of each batch."""

    def __init__(self):
        self.batches = []

    def send(self, *message):
        raise AssertionError(message)

    def send_now(self, key, batch, error):
        assert error is None
        self.batches.append([flat[0] for _, flat in batch])


def take(channel, rank):
    channel.worker._receive(rank, "take", 0, "", 0, 10.0, 0.0)


@pytest.mark.real_time
async def test_a_take_is_answered_at_once_if_all_askers_are_paused():
    channel, rank = Channel(), Rank()
    client = channel.client()
    await served_once(channel, client)
    askers = ask(client, 1, 2)
    await settle()
    take(channel, rank)
    await asyncio.sleep(0)  # the event loop may have read the first request
    assert rank.batches == [[1, 2]]
    askers += ask(client, 3, 4)
    await settle()
    take(channel, rank)
    assert rank.batches == [[1, 2], [3, 4]]
    for asker in askers:
        asker.cancel()


@pytest.mark.real_time
async def test_requests_that_the_event_loop_reads_in_the_turn_of_a_take_join_its_batch(monkeypatch):
    monkeypatch.setattr(request_channel, "this_node", lambda: "another")
    channel, rank = Channel(), Rank()
    client = channel.client()
    for shards in ([1, 2], [3, 4]):
        early = ask(client, shards[0])
        await settle()
        take(channel, rank)
        body = packed(("nobody", b""), b"")
        late = flattened(request(shards[1]), node="", generation=0, asked=0.0, body=body)
        channel.worker._receive(rank, "ask", late, [])
        await asyncio.sleep(0)
        assert rank.batches.pop() == shards
        early[0].cancel()


@pytest.mark.real_time
async def test_an_asker_that_has_died_during_a_pause_costs_the_others_nothing(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel()
    dead, other = channel.client(), channel.client()
    server = await served_once(channel, dead)
    (asker,) = ask(other, 1)
    assert await answer(server) == [1]
    await asker
    dead._channel._connection.abort()
    askers = ask(other, 2, 3)
    await settle()
    assert await answer(server) == [2, 3]
    await asyncio.gather(*askers)
    assert len(channel.worker._reading._paused) == 1


@pytest.mark.real_time
async def test_each_request_is_read_as_it_comes_while_a_rank_waits(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel()
    client = channel.client()
    server = await served_once(channel, client)
    for shard in (3, 5):
        waiting = asyncio.create_task(answer(server))
        await settle()
        (asker,) = ask(client, shard)
        assert await waiting == [shard]
        await asker


@pytest.mark.real_time
async def test_after_the_longest_pause_requests_are_read_and_their_deadline_counts(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", 0.001)
    channel = Channel(dynamic(deadline_s=0.05))
    client = channel.client()
    server = await served_once(channel, client)
    late = [*ask(client, 1), *ask(client, 2)]
    errors = await asyncio.gather(*late, return_exceptions=True)
    assert [type(error) for error in errors] == [DeadlineError, DeadlineError]
    (asker,) = ask(client, 3)
    assert await answer(server) == [3]
    await asker


@pytest.mark.real_time
async def test_a_wait_is_counted_from_the_sending_on_the_channel_s_node_alone(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    for node, is_near in (("", True), ("another", False)):
        monkeypatch.setattr(request_channel, "this_node", lambda node=node: node)
        channel = Channel()
        server, (asker,) = channel.server(), ask(channel.client(), 1)
        (pending,) = await server.take()
        assert (pending.arrived == pending.request.asked) is is_near
        assert pending.arrived >= pending.request.asked
        asker.cancel()


@pytest.mark.real_time
async def test_what_is_unread_when_the_channel_closes_is_refused(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel()
    client = channel.client()
    await served_once(channel, client)
    (asker,) = ask(client, 1)
    await settle()
    await channel.close()
    with pytest.raises(PeerError, match="after inference had closed"):
        await asker


@pytest.mark.real_time
async def test_a_request_read_in_one_turn_with_a_take_does_not_pause_its_connection(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel(dynamic(max_size=2, max_wait=10.0))
    client = channel.client()
    (early,) = ask(client, 5)
    (full,) = ask(client, 6)
    server = channel.server()
    assert await answer(server) == [5, 6]
    await asyncio.gather(early, full)
    channel.worker._reading.resume()  # its connections are read, and no rank waits
    taking = asyncio.create_task(answer(server))
    askers = ask(client, 0)
    await settle()
    askers += ask(client, 1)
    async with asyncio.timeout(5):
        assert await taking == [0, 1]
    await asyncio.gather(*askers)


@pytest.mark.real_time
async def test_a_connection_with_more_than_a_socket_holds_is_not_paused_again(monkeypatch):
    monkeypatch.setattr(reading_pauses, "MAX_PAUSE_S", FOR_EVER_S)
    channel = Channel(dynamic(max_size=1000))
    client = channel.client()
    server, batches = await served_once(channel, client), []
    for _ in range(3):
        askers = [
            asyncio.create_task(client.act(request(shard, payload=observation(shard, side=90))))
            for shard in range(60)
        ]
        await settle()
        await settle()
        answered = [await answer(server)]
        while sum(map(len, answered)) < 60:
            answered.append(await answer(server))
        await asyncio.gather(*askers)
        batches.append(len(answered))
    assert batches[1:] == [1, 1]
