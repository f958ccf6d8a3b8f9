import asyncio
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.ray_runtime.coordinator import Coordinator, PieceClient, TrajectoryClient
from tests.loops.virtual import run
from tests.making import piece, run_settings, ticket


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


def test_a_rollout_is_asked_for_by_the_coordinator_and_kept_no_longer():
    async def main():
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

    run(main())


def test_a_run_that_adapts_begins_with_a_bound_of_1_and_may_be_given_that_of_its_config():
    async def main():
        block = {"mode": "full", "adapt": True, "train": {"max_staleness": 2}}
        coordinator = Coordinator(run_settings(asynchrony=AsyncConfig.from_mapping(block), batches=9), 0)
        assert [(await coordinator.admit(0, 0)).batch for _ in range(2)] == [0, 1]
        waiting = asyncio.create_task(coordinator.admit(0, 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await coordinator.limit_staleness(2)
        assert (await waiting).batch == 2
        held, other = await coordinator.pop_held_back()
        assert 0 <= other <= held <= 1

    asyncio.run(main())
