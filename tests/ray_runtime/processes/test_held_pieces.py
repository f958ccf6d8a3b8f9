"""The data of pieces in the memory of the learner rank that trains them, whatever becomes of its maker."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.processes.coordinator import HeldPieces, LearnerRanks
from rlinf_async.wire import memory, payloads
from tests.making import piece, ticket

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


async def test_a_rollout_that_was_refused_and_is_collected_again_takes_its_place():
    held = HeldPieces()
    learners = LearnerRanks([held.address()])
    for number in (1, 2):
        await learners.give(made(ticket(0), number))
    assert rewards(held, ticket(0)) == 2.0


def files():
    """Memory files that this process holds or maps."""
    return sum("rlinf-async" in line for line in Path("/proc/self/maps").read_text().splitlines())


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


async def test_from_another_machine_it_is_sent(monkeypatch):
    looked, held = [], HeldPieces()

    def look(place):
        looked.append(place)
        if len(looked) == 1:
            raise PeerError("on another machine")
        return memory.read(place)  # there

    monkeypatch.setattr(payloads, "read", look)
    await LearnerRanks([held.address()]).give(made(ticket(0), 9))
    assert len(looked) == 2
    assert rewards(held, ticket(0)) == 9.0


GIVING = """
import asyncio
import os
import torch
from rlinf_async.ray_runtime.processes.coordinator import LearnerRanks
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
    monkeypatch.setattr(payloads, "read", lambda place: 1 / 0)
    with pytest.raises(PeerError, match="division by zero"):
        await LearnerRanks([address]).give(made(ticket(0), 1))
    monkeypatch.undo()
    with pytest.raises(PeerError, match="a learner rank cannot be reached"):
        await LearnerRanks([("\0nobody", address[1])]).give(made(ticket(0), 1))
