import asyncio
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

import rlinf_async
from rlinf_async.config import AsyncConfig
from rlinf_async.ray_runtime.processes.coordinator import (
    Coordinator,
    HeldPieces,
    PieceClient,
    TrajectoryClient,
)
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from tests.making import plan, rollout, run_settings


def handle(coordinator):
    """Ray's handle of a coordinator in this process."""
    return SimpleNamespace(address=SimpleNamespace(remote=coordinator.address))


async def parts(of, *, ranks=1, **options):
    """A coordinator, the env side of it and, by rank, the learner side."""
    coordinator, held = Coordinator(run_settings(plan=of, **options), 0), [HeldPieces() for _ in range(ranks)]
    await coordinator.introduce([each.address() for each in held])
    takers = [PieceClient(handle(coordinator), each, rank=rank) for rank, each in enumerate(held)]
    return coordinator, TrajectoryClient(handle(coordinator)), takers


def collected(of, given, number=0):
    """The pieces of a rollout, whose data is a number and that of the part."""
    return [replace(each, payload={"held": torch.tensor([number, each.part])}) for each in rollout(of, given)]


async def test_a_learner_rank_gets_the_data_of_its_own_part_where_a_rollout_is_for_several_ranks():
    of = plan(total_envs=8, shards_per_worker=2, learner_ranks=4, rollout_epochs=2)
    assert of.parts == 2
    coordinator, client, takers = await parts(of, ranks=4, global_batch_size=16, max_batch_size=4)
    for shard in (1, 0, 0, 1):
        given = await client.admit(shard)
        await client.put(given, collected(of, given, 10 * shard + given.epoch))
    # What waits has no data: none of it has come to the coordinator.
    assert [each.payload for each in coordinator._broker.buffer.untrained()] == [None] * 8
    for rank, taker in enumerate(takers):
        pieces, last = await taker.take(0, whole=True)
        assert (len(pieces), last) == (2, True)
        for found in pieces:
            number = 10 * found.ticket.shard + found.ticket.epoch
            assert found.rank == rank
            assert found.payload["held"].tolist() == [number, found.part]


async def test_pieces_are_taken_as_they_come_and_a_rollout_that_is_given_up_is_collected_again():
    of = plan()
    coordinator, client, (taker,) = await parts(of)
    first, second = [await client.admit(shard) for shard in range(2)]
    await client.put(second, collected(of, second, 7))
    ((found,), last) = await taker.take(0, whole=False)
    assert (found.payload["held"].tolist(), last) == ([7, 0], False)
    await client.abandon(first, "env failed")
    await client.put(first, collected(of, first))  # too late
    again = await client.admit(0)
    await client.put(again, collected(of, again, 8))
    ((found,), last) = await taker.take(0, whole=True)
    assert (found.payload["held"].tolist(), last) == ([8, 0], True)
    assert (await coordinator.read_ledger()).refused == {"env failed": 1}


async def test_a_learner_rank_lets_go_of_a_batch_when_it_takes_the_next():
    of = plan(total_envs=1, shards_per_worker=1)
    asynchrony = AsyncConfig.from_mapping({"mode": "full"})
    _, client, (taker,) = await parts(of, asynchrony=asynchrony, global_batch_size=1, batches=4)
    for batch in range(2):
        given = await client.admit(0)
        assert given.batch == batch
        await client.put(given, collected(of, given, batch))
    (found,), _ = await taker.take(0, whole=True)
    assert taker._data.with_data(found).payload["held"].tolist() == [0, 0]
    (other,), _ = await taker.take(1, whole=True)
    assert other.payload["held"].tolist() == [1, 0]
    with pytest.raises(KeyError):
        taker._data.with_data(found)


async def test_calls_of_an_env_worker_that_was_lost_count_no_more_and_what_it_has_handed_over_does():
    of = plan()
    coordinator, client, (taker,) = await parts(of)
    first, second = [await client.admit(shard) for shard in range(2)]
    await client.put(first, collected(of, first, 1))
    assert await coordinator.shards_lost([0, 1], 1) == 1
    await client.put(second, collected(of, second, 2))
    assert await client.admit(1) is None
    successor = TrajectoryClient(handle(coordinator), generation=1)
    again = await successor.admit(1)
    assert (again.batch, again.generation) == (0, 1)
    await successor.put(again, collected(of, again, 3))
    pieces, last = await taker.take(0, whole=True)
    assert [each.payload["held"].tolist() for each in pieces] == [[1, 0], [3, 0]]
    assert last
    ledger = await coordinator.read_ledger()
    assert (ledger.produced, ledger.refused) == (3, {"env worker died": 1})


async def test_what_a_call_fails_with_is_raised_in_who_has_called():
    client = (await parts(plan()))[1]
    given = await client.admit(0)
    with pytest.raises(IndexError, match="list index out of range"):
        await client.admit(9)
    assert given.shard == 0


async def test_a_buffer_that_was_saved_is_with_the_learner_ranks_of_the_run_that_goes_on(tmp_path):
    of = plan(total_envs=4, learner_ranks=2)
    options = {"ranks": 2, "global_batch_size": 4, "micro_batch_size": 2, "max_batch_size": 4}
    coordinator, client, takers = await parts(of, **options)
    for shard in range(2):
        given = await client.admit(shard)
        await client.put(given, collected(of, given, 5 + shard))
    await takers[1].take(0, whole=False)  # ahead of its training
    assert await coordinator.save_buffer(str(tmp_path)) is None
    after, _, takers = await parts(of, **options)
    assert str(await after.resume_buffer(str(tmp_path))).startswith("4 trajectories")
    assert not any(each.payload for each in after._broker.buffer.untrained())
    for rank in range(2):
        pieces, last = await takers[rank].take(0, whole=True)
        assert last
        found = [each.payload["held"].tolist() for each in pieces]
        assert found == [[5 + each.ticket.shard, each.part] for each in pieces]
        assert {each.rank for each in pieces} == {rank}


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
    coordinator, client, _ = await parts(of, asynchrony=asynchrony, batches=4)
    await coordinator.offer_weights(0, ["first"])  # nobody has any yet
    assert (await coordinator.next_weights(0, 0, *MIRROR))[0] == 0
    await coordinator.weights_applied(0, 0, 0)
    offering = asyncio.ensure_future(coordinator.offer_weights(1, ["second"]))
    waiting = asyncio.ensure_future(coordinator.next_weights(0, 0, *MIRROR))
    for _ in range(2):  # batches 0 and 1 are acted by version 0
        await asyncio.wait([offering, waiting], timeout=1)
        assert not offering.done()
        assert not waiting.done()
        given = await client.admit(0)
        await client.put(given, collected(of, given))
    await offering
    assert (await waiting)[0] == 1


PACKAGE = Path(rlinf_async.__file__).parent
CALLS = re.compile(r"(coordinator|requests|channel)\.([a-z_]+)\.remote\(")


def test_every_remote_call_of_the_coordinator_and_of_the_request_channel_is_one_of_their_methods():
    # Ray finds a name that is not there when it is called, in the midst of a run.
    found = {call for path in PACKAGE.rglob("*.py") for call in CALLS.findall(path.read_text())}
    assert len(found) > 9
    classes = {"coordinator": Coordinator, "requests": RequestChannel, "channel": RequestChannel}
    assert [(who, name) for who, name in sorted(found) if not hasattr(classes[who], name)] == []
