"""The books of a run, and the data of pieces, which is with the learner ranks that train them."""

import asyncio
import gc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

import rlinf_async
from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.rollout_data import (
    HeldPieces,
    LearnerRanks,
    PieceClient,
    TrajectoryClient,
)
from rlinf_async.wire import memory, shown_memory
from tests.making import piece, plan, rollout, run_settings, ticket


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


# The data of pieces in the memory of a learner rank, whatever becomes of its maker.

LARGE, SMALL = 50_000, 3


def made(of, number, *, size=LARGE, **options):
    return piece(of, payload={"rewards": torch.full((size,), float(number)), "said": "so"}, **options)


def rewards(held, of, **options):
    """What a learner rank has of a piece: one number, which all of it is."""
    data = held.with_data(piece(of, **options)).payload
    assert data["said"] == "so"
    (number,) = data["rewards"].unique().tolist()
    return number


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_each_rank_has_the_data_of_its_own_pieces_and_shows_them(size):
    ranks = [HeldPieces(), HeldPieces()]
    learners, of = LearnerRanks([rank.address() for rank in ranks]), ticket(2, batch=3)
    given = [
        made(of, 10 * rank + part, size=size, rank=rank, part=part) for rank in (1, 0) for part in (0, 1)
    ]
    await asyncio.gather(*map(learners.give, given))
    for rank in (0, 1):
        assert [rewards(ranks[rank], of, part=part) for part in (0, 1)] == [10 * rank, 10 * rank + 1]
    shown = await learners.show(piece(of, rank=1, part=1))
    assert shown["rewards"].tolist() == [11.0] * size


async def test_what_was_handed_over_stays_when_more_is_and_is_the_learners_to_write_to():
    held = HeldPieces()
    learners = LearnerRanks([held.address()])
    for shard in range(3):
        await learners.give(made(ticket(shard), shard))
    held.with_data(piece(ticket(1))).payload["rewards"].add_(7.0)
    assert [rewards(held, ticket(shard)) for shard in range(3)] == [0.0, 8.0, 2.0]


def files():
    """The number of memory files of which a reader in this process maps a copy of its own."""
    lines = [
        line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "rlinf-async" in line
    ]
    return sum(access.endswith("p") for _, access, *_ in lines)


async def test_data_is_let_go_with_its_batch_and_not_before():
    gc.collect()  # what other tests have left
    held, before = HeldPieces(), files()
    learners = LearnerRanks([held.address()])
    for batch in (4, 5, 6):
        await learners.give(made(ticket(0, batch=batch), batch))
    assert files() == before + 3
    held.let_go_before(5)
    assert files() == before + 2
    assert [rewards(held, ticket(0, batch=batch)) for batch in (5, 6)] == [5.0, 6.0]
    with pytest.raises(KeyError):
        held.with_data(piece(ticket(0, batch=4)))


def mapped_bytes():
    """The bytes of memory files that this process, as a reader, has in its table of pages."""
    total = counts = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *words = line.split()
        if "-" in first:
            counts = "rlinf-async" in line and words[0].endswith("p")
        elif first == "Rss:" and counts:
            total += 1024 * int(words[0])
    return total


async def test_pages_are_mapped_when_a_learner_takes_their_piece_and_until_its_batch_is_let_go():
    gc.collect()  # what other tests have left
    held, before = HeldPieces(), mapped_bytes()
    learners = LearnerRanks([held.address()])
    for batch in (4, 5):
        for shard in range(2):
            await learners.give(made(ticket(shard, batch=batch), batch))
    assert mapped_bytes() == before
    sizes = []
    for batch in (4, 5):
        for shard in range(2):
            held.with_data(piece(ticket(shard, batch=batch)))
        sizes.append(mapped_bytes() - before)
        held.let_go_before(batch + 1)
        assert mapped_bytes() == before
    assert min(sizes) >= 2 * 4 * LARGE
    assert max(sizes) < 2 * (4 * LARGE + 2**16)


async def test_from_another_machine_it_is_sent(monkeypatch):
    looked, held = [], HeldPieces()

    def look(place):
        looked.append(place)
        if len(looked) == 1:
            raise PeerError("on another machine")
        return memory.read(place)  # there

    monkeypatch.setattr(shown_memory, "read", look)
    await LearnerRanks([held.address()]).give(made(ticket(0), 9))
    assert len(looked) == 2
    assert rewards(held, ticket(0)) == 9.0


GIVING = """
import asyncio
import os
import torch
from rlinf_async.ray_runtime.processes.rollout_data import LearnerRanks
from tests.making import piece, ticket

async def main():
    payload = {{"rewards": torch.full((50_000,), 5.0), "said": "so"}}
    await LearnerRanks([{address!r}]).give(piece(ticket(0), payload=payload))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.real_time
async def test_it_outlives_the_process_that_made_it():
    held = HeldPieces()
    command = [sys.executable, "-c", GIVING.format(address=held.address())]
    assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == -9
    assert rewards(held, ticket(0)) == 5.0


async def test_a_learner_rank_that_cannot_have_the_data_says_so_and_so_does_one_that_has_gone(monkeypatch):
    held = HeldPieces()
    address = held.address()
    monkeypatch.setattr(shown_memory, "read", lambda place: 1 / 0)
    with pytest.raises(PeerError, match="division by zero"):
        await LearnerRanks([address]).give(made(ticket(0), 1))
    monkeypatch.undo()
    with pytest.raises(PeerError, match="a learner rank cannot be reached"):
        await LearnerRanks([("\0nobody", address[1])]).give(made(ticket(0), 1))
