"""What becomes of rollouts that wait for the learner in the memory of a node that is lost; with real Ray."""

import asyncio
from dataclasses import replace

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf_async.ray_runtime.coordinator import Coordinator, PieceClient, TrajectoryClient
from tests.making import plan, rollout, run_settings
from tests.runs.two_nodes import SOON_MISSED

SETTINGS = run_settings(plan=plan())
"""Two shards, whose rollouts are one piece each."""


class Collecting:
    """An env worker of both shards, whose rollouts are of a size that Ray leaves where it is made."""

    def __init__(self, coordinator, generation):
        self._client = TrajectoryClient(coordinator, generation=generation)

    async def collect(self):
        await self._client.introduce(ray.get_runtime_context().current_actor)
        for shard in range(2):
            ticket = await self._client.admit(shard)
            (piece,) = rollout(SETTINGS.plan, ticket)
            payload = {"shard": torch.full((100_000,), float(shard))}
            await self._client.put(ticket, [replace(piece, payload=payload)])

    async def give_rollout(self, number):
        return self._client.give(number)


@pytest.fixture
def nodes():
    """Two Ray nodes on this machine, the driver on the first."""
    cluster = Cluster()
    made = [cluster.add_node(num_cpus=4, _system_config=SOON_MISSED, include_dashboard=False)]
    made.append(cluster.add_node(num_cpus=4, include_dashboard=False))
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster, made
    ray.shutdown()
    cluster.shutdown()


def on(node, cls, *arguments):
    """An actor of `cls` on a node."""
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.remote(cls).options(num_cpus=0, scheduling_strategy=there).remote(*arguments)


@pytest.mark.ray
def test_what_waited_on_a_lost_node_is_collected_again_and_trained(nodes):
    cluster, (first, second) = nodes
    coordinator = on(first, Coordinator, SETTINGS, 0)
    ray.get(on(second, Collecting, coordinator, 0).collect.remote())
    cluster.remove_node(second, allow_graceful=False)
    assert ray.get(coordinator.shards_lost.remote([0, 1], 1)) == 0

    async def main():
        taking = asyncio.create_task(PieceClient(coordinator, rank=0).take(0, whole=True))
        # Once the loss is known: a shard that asks before, in the last batch, has nothing left to do.
        while not taking.done() and not (await coordinator.read_ledger.remote()).refused:
            pass
        await on(first, Collecting, coordinator, 1).collect.remote()
        return await taking

    pieces, last = asyncio.run(main())
    assert last
    assert [piece.payload["shard"].unique().tolist() for piece in pieces] == [[0.0], [1.0]]
    assert [piece.ticket.generation for piece in pieces] == [1, 1]
    ledger = ray.get(coordinator.read_ledger.remote())
    assert (ledger.produced, ledger.refused, ledger.in_flight) == (4, {"node lost": 2}, 2)
