"""Request channels of several nodes, with shards and inference ranks on each, in one event loop."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.failures import DeadlineError
from rlinf_async.core.request_channels import FIRST_PASS_S
from rlinf_async.loops.inference import serve_policy
from rlinf_async.ray_runtime.processes import request_clients, request_server
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from tests.conformance.requests import Channel, act, answer, ask, dynamic, five_decisions, observation, seen
from tests.loops.virtual import now, run, settle
from tests.making import request

DIED = ray.exceptions.RayActorError(error_msg="its node has died")


class Node(Channel):
    """The channel of a node; all nodes are on this machine."""

    def __init__(self, given):
        super().__init__(given)
        self.died, self.told, self.late_s = None, [], 0.0
        self.address = SimpleNamespace(remote=self._address)
        self.way_lost = SimpleNamespace(remote=self._way_lost)

    async def _address(self, node):
        await asyncio.sleep(self.late_s)
        return await self.worker.address("")

    async def _way_lost(self, *who):
        self.told.append(who)
        if self.died is not None:
            raise self.died
        await self.worker.way_lost(*who)


class Nodes:
    """Nodes "a", "b" ..., each with a channel."""

    def __init__(self, count, **limits):
        self.channels = {name: Node(dynamic(**limits)) for name in "abcde"[:count]}

    def __getitem__(self, name):
        return self.channels[name]

    def client(self, node):
        return self._on(node, RequestClient)

    def server(self, node, rank, **fields):
        return self._on(node, RequestServer, rank=rank, **fields)

    def _on(self, node, side, **fields):
        with pytest.MonkeyPatch.context() as patch:
            for module in (request_clients, request_server):
                patch.setattr(module, "this_node", lambda: node)
            return side(self.channels, **fields)

    async def close(self):
        for channel in self.channels.values():
            await channel.close()


async def test_a_request_stays_on_its_node_while_a_rank_there_answers_within_a_pass():
    nodes, rng = Nodes(2, max_size=4), random.Random(1)
    served = {"a": Counter(), "b": Counter()}

    def serve(node, rank):
        async def acting(batch):
            served[node].update(pending.shard for pending in batch)
            await asyncio.sleep(0.2)
            return await act(batch)

        return asyncio.create_task(
            serve_policy(requests=nodes.server(node, rank), policy=SimpleNamespace(act=acting))
        )

    async def shard(client, number):
        for _ in range(100):
            await asyncio.sleep(2 * rng.random())
            await client.act(request(number, payload=observation(number)))

    serving = [serve("a", 0), serve("b", 1)]
    few, many = nodes.client("b"), nodes.client("a")
    # A rank knows its pass when it has made one.
    await few.act(request(9, payload=observation(9)))
    await asyncio.gather(*(shard(many, number) for number in range(4)), shard(few, 9))
    assert served == {"a": Counter(dict.fromkeys(range(4), 100)), "b": Counter({9: 101})}
    await nodes.close()
    await asyncio.gather(*serving)


async def test_a_rank_without_work_answers_what_another_node_leaves_for_longer_than_a_pass():
    nodes = Nodes(3)
    helper = asyncio.create_task(answer(nodes.server("c", 2)))
    await asyncio.sleep(10.0)
    (asker,) = ask(nodes.client("b"), 7)
    asked_at = now()
    assert await seen(asker) == 7
    assert await helper == [7]
    assert now() - asked_at >= FIRST_PASS_S
    assert now() - asked_at < 3.0  # both other channels are looked at within two seconds


async def test_a_rank_that_helps_takes_what_has_come_at_home_first():
    nodes = Nodes(2, max_size=1)
    server, there, here = nodes.server("b", 1), nodes.client("a"), nodes.client("b")
    askers = ask(there, 1, 2, 3)
    await asyncio.sleep(1.0)
    assert await answer(server) == [1]
    askers += ask(here, 8)
    await settle()
    assert [await answer(server) for _ in range(3)] == [[8], [2], [3]]
    await asyncio.gather(*askers)


async def test_a_rank_of_a_node_without_a_channel_is_at_home_at_the_first():
    nodes = Nodes(2)
    taking = asyncio.create_task(answer(nodes.server("elsewhere", 0)))
    await settle()
    (asker,) = ask(nodes.client("another"), 3)
    assert await seen(asker) == 3
    assert await taking == [3]
    assert now() == 0.0


async def test_a_rank_that_nobody_asks_anywhere_says_so():
    server = Nodes(3).server("b", 5, deadline_s=60.0)
    with pytest.raises(DeadlineError, match="waited 60 s for a request to inference rank 5"):
        await server.take()
    assert 60.0 <= now() < 62.0


async def test_a_channel_that_is_slow_keeps_no_rank_from_its_own_requests_and_its_batch_comes_later():
    nodes = Nodes(2)
    nodes["a"].late_s = 100.0
    server, (far,) = nodes.server("b", 1), ask(nodes.client("a"), 1)
    for number in (2, 3):
        taking = asyncio.create_task(answer(server))
        await asyncio.sleep(20.0)
        (near,) = ask(nodes.client("b"), number)
        await settle()
        assert await seen(near) == number
        assert await taking == [number]
    assert await answer(server) == [1]
    assert await seen(far) == 1
    assert now() >= 100.0


async def test_what_was_given_by_a_way_that_has_ended_is_asked_again():
    nodes = Nodes(2)
    server = nodes.server("b", 1)
    (asker,) = ask(nodes.client("a"), 4)
    await asyncio.sleep(1.0)
    assert [pending.shard for pending in await server.take()] == [4]
    server._ways[0].channel._connection.abort()
    await settle()
    assert await answer(server) == [4]
    assert nodes["a"].told == [(1, 0)]
    assert await seen(asker) == 4
    assert await nodes["a"].asked_again() == 1


@pytest.mark.parametrize("late", [False, True], ids=["at once", "when Ray knows it"])
async def test_a_rank_leaves_a_channel_that_has_died_and_serves_on(late):
    nodes = Nodes(2, deadline_s=1000.0)
    server = nodes.server("b", 1)
    (asker,) = ask(nodes.client("a"), 4)
    await asyncio.sleep(1.0)
    await answer(server)
    await asker
    nodes["a"].died = ray.exceptions.ActorUnavailableError("it is out of reach", None) if late else DIED
    server._ways[0].channel._connection.abort()
    taking = asyncio.create_task(answer(server))
    await asyncio.sleep(30.0)
    nodes["a"].died = DIED
    await asyncio.sleep(30.0)
    told = len(nodes["a"].told)
    assert (told > 1) == late
    await asyncio.sleep(30.0)
    assert len(nodes["a"].told) == told
    (near,) = ask(nodes.client("b"), 5)
    assert await seen(near) == 5
    assert await taking == [5]


async def test_a_rank_ends_with_its_own_channel_and_not_with_another():
    nodes = Nodes(2)
    taking = asyncio.create_task(nodes.server("b", 1).take())
    await nodes["a"].close()
    await asyncio.sleep(5.0)
    assert not taking.done()
    await nodes["b"].close()
    assert await taking is None


async def test_a_lost_rank_of_another_node_leaves_what_it_had_taken_to_others():
    nodes = Nodes(2)
    lost = nodes.server("b", 1)
    (asker,) = ask(nodes.client("a"), 4)
    await asyncio.sleep(1.0)
    await lost.take()
    for channel in nodes.channels.values():
        await channel.rank_lost(1, 1)
    assert await answer(nodes.server("a", 0)) == [4]
    assert await seen(asker) == 4
    assert await lost.take() is None


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    ranks=st.integers(1, 6),
    shards=st.integers(1, 8),
    max_size=st.integers(3, 9),
)
def test_under_any_interleaving_every_request_is_answered_once(seed, count, ranks, shards, max_size):
    rng, served = random.Random(seed), []

    async def main():
        nodes = Nodes(count, max_size=max_size, deadline_s=1e6)
        names = list(nodes.channels)

        async def acting(batch):
            await asyncio.sleep(rng.choice([0.0, 0.125, 2.0]))
            served.extend(pending.request.number for pending in batch)
            return await act(batch)

        serving = [
            asyncio.create_task(
                serve_policy(
                    requests=nodes.server(rng.choice(names), rank), policy=SimpleNamespace(act=acting)
                )
            )
            for rank in range(ranks)
        ]
        clients = {name: nodes.client(name) for name in names}
        await asyncio.gather(
            *(five_decisions(clients[rng.choice(names)], number, rng) for number in range(shards))
        )
        await nodes.close()
        await asyncio.gather(*serving)
        assert all(channel.broker.waiting == 0 for channel in nodes.channels.values())

    run(main())
    assert len(served) == len(set(served)) == 5 * shards
