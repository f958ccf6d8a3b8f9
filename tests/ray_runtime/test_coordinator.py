import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

import ray

import rlinf_async
from rlinf_async.config import AsyncConfig
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.ray_runtime.coordinator import Coordinator, PieceClient, TrajectoryClient
from rlinf_async.ray_runtime.request_channel import RequestChannel
from rlinf_async.ray_runtime.wire import pack
from tests.loops.virtual import run
from tests.making import piece, plan, rollout, run_settings, ticket


class Channel:
    """Answers every call with one piece, which is the batch's last."""

    def __init__(self):
        self.asked = []
        self.take_pieces = SimpleNamespace(remote=self._take)

    async def _take(self, rank, batch, whole):
        self.asked.append((rank, batch, whole))
        payload = asyncio.get_running_loop().create_future()
        payload.set_result({"of": batch})
        ticket = Ticket(shard=0, batch=batch, epoch=0, place=0, version=batch)
        size = {"size": 1, "oldest": batch, "newest": batch, "env_steps": 1}
        return [Piece(ticket=ticket, part=0, rank=rank, payload=[payload], **size)], True


def test_a_learner_rank_is_given_pieces_with_their_data():
    channel = Channel()
    (given,), last = run(PieceClient(channel, rank=1).take(4, whole=False))
    assert (given.payload, last, channel.asked) == ({"of": 4}, True, [(1, 4, False)])


class Losing:
    """Three pieces of a batch; the data of those that `lost` names is on a node that has gone, once."""

    def __init__(self, lost):
        self._lost, self._wanted, self.missed = set(lost), [0, 1, 2], []
        self.take_pieces = SimpleNamespace(remote=self._take)
        self.pieces_lost = SimpleNamespace(remote=self._note)

    async def _take(self, rank, batch, whole):
        wanted, self._wanted = self._wanted, []
        return [piece(ticket(shard), payload=[self._data(shard)]) for shard in wanted], True

    async def _data(self, shard):
        if shard in self._lost:
            raise ray.exceptions.ObjectLostError("an object", None, "")
        return pack({"of": torch.tensor(shard)})

    async def _note(self, pieces):
        assert [lost.payload for lost in pieces] == [None] * len(pieces)
        self.missed.append([lost.ticket.shard for lost in pieces])
        self._wanted, self._lost = self.missed[-1], set()


@pytest.mark.parametrize(
    ("whole", "lost", "expected"),
    [
        (False, [1], [([0, 2], False), ([1], True)]),
        (False, [0, 1, 2], [([0, 1, 2], True)]),
        (True, [0, 2], [([1, 0, 2], True)]),
    ],
)
def test_a_learner_rank_says_what_it_misses_and_takes_that_again(whole, lost, expected):
    coordinator = Losing(lost)

    async def main():
        client = PieceClient(coordinator, rank=0)
        return [await client.take(0, whole=whole) for _ in expected]

    taken = [([each.payload["of"].item() for each in pieces], last) for pieces, last in run(main())]
    assert (taken, coordinator.missed) == (expected, [lost])


class Coordinating:
    """Ray's handle of a coordinator, and of the env worker that hands over to it."""

    def __init__(self):
        self.client, self.taken = TrajectoryClient(self, generation=3), []
        self.workers = {}
        self.introduce = SimpleNamespace(remote=self._introduce)
        self.put_rollout = SimpleNamespace(remote=self._put)
        self.admit = SimpleNamespace(remote=self._admit)

    async def _admit(self, shard, generation):
        return shard, generation

    async def _introduce(self, client, worker):
        self.workers[client] = worker

    async def _put(self, ticket, pieces, client, number):
        *data, nothing = self.workers[client].client.give(number)
        self.taken += zip(pieces, data, strict=True)
        assert nothing is None


async def test_a_rollout_is_asked_for_by_the_coordinator_and_kept_no_longer():
    coordinator = Coordinating()
    client, of = coordinator.client, ticket(2)
    await client.introduce(coordinator)
    given = [piece(of, part=part, payload={"rewards": torch.full((2,), float(part))}) for part in (0, 1)]
    await client.put(of, given)
    assert [(one.part, one.payload) for one, _ in coordinator.taken] == [(0, None), (1, None)]
    assert [data["rewards"].tolist() for _, data in coordinator.taken] == [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(KeyError):
        client.give(0)
    assert await client.admit(2) == (2, 3)


class Holding:
    """Ray's handle of an env worker whose rollouts have two parts; what they hold is their own number."""

    def __init__(self):
        self.give_rollout = SimpleNamespace(options=self._options)

    def _options(self, num_returns):
        def remote(number):
            loop = asyncio.get_running_loop()
            given = [loop.create_future() for _ in range(num_returns)]
            for part, one in enumerate(given):
                one.set_result(pack({"held": torch.tensor([number, part])}))
            return given

        return SimpleNamespace(remote=remote)


def handle(coordinator):
    """Ray's handle of a coordinator in this process."""

    def remote(name):
        return SimpleNamespace(remote=getattr(coordinator, name))

    return SimpleNamespace(take_pieces=remote("take_pieces"))


async def test_a_learner_rank_gets_the_data_of_its_own_part_where_a_rollout_is_for_several_ranks():
    of = plan(total_envs=8, shards_per_worker=2, learner_ranks=4, rollout_epochs=2)
    settings = run_settings(plan=of, global_batch_size=16, max_batch_size=4)
    assert of.parts == 2
    coordinator = Coordinator(settings, 0)
    await coordinator.introduce("worker", Holding())
    for shard in (1, 0, 0, 1):
        given = await coordinator.admit(shard, 0)
        number = 10 * shard + given.epoch
        await coordinator.put_rollout(given, rollout(of, given), "worker", number)
    for rank in range(4):
        pieces, last = await PieceClient(handle(coordinator), rank=rank).take(0, whole=True)
        assert (len(pieces), last) == (2, True)
        for found in pieces:
            number = 10 * found.ticket.shard + found.ticket.epoch
            assert found.rank == rank
            assert found.payload["held"].tolist() == [number, found.part]


MIRROR = "node", ("its mirror", b"token")


async def test_the_first_rank_of_a_node_mirrors_weights_for_it_until_it_is_lost():
    coordinator = Coordinator(run_settings(plan=plan(inference_ranks=3)), 0)
    await coordinator.offer_weights(0, ["first"])
    asked = [(2, "one"), (0, "one"), (1, "other"), (1, "other")]
    said = [(await coordinator.next_weights(rank, 0, node, rank))[2] for rank, node in asked]
    assert said == [2, 2, 1, 1]
    await coordinator.rank_lost(2, 1)
    assert await coordinator.next_weights(2, 0, "one", 2) is None  # of the dead
    said = [
        await coordinator.next_weights(rank, generation, node, rank)
        for rank, generation, node in [(0, 0, "one"), (2, 1, "one"), (1, 0, "other")]
    ]
    assert said == [(0, ["first"], mirror) for mirror in (0, 0, 1)]


async def test_weights_of_a_deterministic_run_are_offered_when_nobody_needs_those_before():
    asynchrony = AsyncConfig.from_mapping({"mode": "train", "deterministic": True})
    of = plan(shards_per_worker=1)
    settings = run_settings(asynchrony=asynchrony, plan=of, batches=4)
    coordinator = Coordinator(settings, 0)
    await coordinator.offer_weights(0, ["first"])  # nobody has any yet
    assert (await coordinator.next_weights(0, 0, *MIRROR))[0] == 0
    await coordinator.introduce("worker", Holding())
    await coordinator.weights_applied(0, 0, 0)
    offering = asyncio.ensure_future(coordinator.offer_weights(1, ["second"]))
    waiting = asyncio.ensure_future(coordinator.next_weights(0, 0, *MIRROR))
    for _ in range(2):  # batches 0 and 1 are acted by version 0
        await asyncio.wait([offering, waiting], timeout=1)
        assert not offering.done()
        assert not waiting.done()
        given = await coordinator.admit(0, 0)
        await coordinator.put_rollout(given, rollout(of, given), "worker", given.batch)
    await offering
    assert (await waiting)[0] == 1


PACKAGE = Path(rlinf_async.__file__).parent
CALLS = re.compile(r"(coordinator|requests|channel)\.([a-z_]+)\.remote\(")


def test_every_remote_call_of_the_coordinator_and_of_the_request_channel_is_one_of_their_methods():
    # Ray finds a name that is not there when it is called, in the midst of a run.
    found = {call for path in PACKAGE.rglob("*.py") for call in CALLS.findall(path.read_text())}
    assert len(found) > 12
    classes = {"coordinator": Coordinator, "requests": RequestChannel, "channel": RequestChannel}
    assert [(who, name) for who, name in sorted(found) if not hasattr(classes[who], name)] == []
