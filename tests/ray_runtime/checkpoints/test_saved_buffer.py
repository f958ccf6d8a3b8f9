import asyncio
import json
import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from rlinf_async.core.failures import PeerError
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.checkpoints.saved_buffer import (
    BUFFER_FOLDER,
    INDEX_FILE,
    KNOWN_FILE,
    ProcessKnowledge,
    read_ledger,
    resume_buffer,
    save_buffer,
    write_tensors,
)

PLAN = ShardPlan(total_envs=8, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=2)


def settings(*, max_staleness=2, plan=PLAN, proximal="recomputed", **changes):
    levels = {"mode": "full", "train": {"max_staleness": max_staleness}}
    given = {
        "horizon": 4,
        "batches": 9,
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "update_epoch": 1,
        "max_batch_size": 8,
        "normalizes": True,
        "seed": 0,
    }
    asynchrony = AsyncConfig.from_mapping({**levels, "advanced": {"proximal": proximal}})
    return RunSettings(asynchrony=asynchrony, plan=plan, **given | changes)


SETTINGS = settings()


def piece(batch, shard, *, oldest, plan=PLAN, part=0):
    ticket = Ticket(shard=shard, batch=batch, epoch=0, place=shard, version=oldest)
    data = {"actions": torch.full((3,), float(batch)), "inputs": {"image": torch.ones(2).bfloat16()}}
    return Piece(
        ticket=ticket,
        part=part,
        rank=0,
        size=plan.piece_size,
        oldest=oldest,
        newest=oldest,
        env_steps=16,
        payload=[data],
    )


def buffer_of(*pieces, version, settings):
    """A buffer in the middle of a run, in which `pieces` wait."""
    plan = settings.plan
    buffer = TrajectoryBuffer(
        pieces_per_rank=plan.pieces_per_rank, max_staleness=settings.asynchrony.max_staleness
    )
    trained = version * plan.trajectories_per_batch
    buffer.restore(version, Ledger(produced=trained, trained=trained))
    assert [buffer.put(piece) for piece in pieces] == [None] * len(pieces)
    return buffer


async def held(piece):
    return piece.payload[0]


def saved(folder, *pieces, version=3, settings=SETTINGS, opened=held):
    folder.mkdir()
    buffer = buffer_of(*pieces, version=version, settings=settings)
    buffer.take(version, 0)  # fetched ahead by the learner, and not trained
    asyncio.run(save_buffer(folder, version, buffer, settings, opened))
    return folder


def resumed(folder, *, version=3, settings=SETTINGS):
    """A gate and a buffer that have gone on from there, and what was said of it."""
    plan, bound = settings.plan, settings.asynchrony.max_staleness
    buffer = TrajectoryBuffer(pieces_per_rank=plan.pieces_per_rank, max_staleness=bound)
    gate = AdmissionGate(
        shards=plan.shards, epochs=1, max_staleness=bound, until=settings.batches, version=version
    )
    became = resume_buffer(folder, version, gate, buffer, settings, lambda data: [data])
    buffer.ledger.check(buffer.held())
    return gate, buffer, str(became)


THREE = (piece(3, 0, oldest=2), piece(3, 1, oldest=3), piece(5, 0, oldest=3))


def test_what_was_not_trained_waits_again_and_is_not_collected_twice(tmp_path):
    gate, buffer, became = resumed(saved(tmp_path / "c", *THREE))
    assert became == "12 trajectories that had not been trained are there again"
    assert (buffer.ledger.produced, buffer.ledger.trained, dict(buffer.ledger.refused)) == (36, 24, {})
    first, second = buffer.take(3, 0)
    assert (first.ticket, first.oldest, first.env_steps) == (THREE[0].ticket, 2, 16)
    data = second.payload[0]
    assert torch.equal(data["actions"], torch.full((3,), 3.0))
    assert data["inputs"]["image"].dtype == torch.bfloat16
    assert [gate.admit(0).batch for _ in range(1)] == [4]  # of its three places two are done
    assert gate.admit(0) is None
    assert [gate.admit(1).batch for _ in range(2)] == [4, 5]


def test_what_is_too_old_now_is_lost_and_collected_again(tmp_path):
    gate, buffer, became = resumed(saved(tmp_path / "c", *THREE), settings=settings(max_staleness=0))
    assert became == "4 trajectories that had not been trained are there again; 8 are lost: they are too old"
    assert buffer.ledger.refused == {"lost at resume": 8}
    assert gate.admit(1) is None
    assert gate.admit(0).batch == 3


BARE = {"max_staleness": 2, "proximal": "loglinear"}
"""Level 1 that recomputes nothing, and so needs no last observations."""


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        ({}, {"horizon": 5}, "horizon"),
        ({}, {"plan": replace(PLAN, shards_per_worker=1)}, "plan"),
        (BARE, {}, "recomputes"),
    ],
)
def test_pieces_of_another_kind_of_run_are_lost_and_said_why(tmp_path, before, now, word):
    folder = saved(tmp_path / "c", *THREE, settings=settings(**before))
    _, buffer, became = resumed(folder, settings=settings(**now))
    assert became.startswith("0 trajectories")
    assert word in became
    assert buffer.ledger.refused == {"lost at resume": 12}


def test_pieces_that_hold_more_than_is_needed_are_kept(tmp_path):
    assert resumed(saved(tmp_path / "c", *THREE), settings=settings(**BARE))[2].startswith("12 trajectories")


def test_of_a_rollout_in_parts_all_must_be_there(tmp_path):
    plan = ShardPlan(total_envs=8, env_workers=1, inference_ranks=1, learner_ranks=2, shards_per_worker=1)
    two = settings(plan=plan)
    whole = [piece(4, 0, oldest=3, plan=plan, part=part) for part in (0, 1)]
    folder = saved(tmp_path / "c", *whole, settings=two)
    assert resumed(folder, settings=two)[2].startswith("8 trajectories")
    index = folder / BUFFER_FOLDER / INDEX_FILE
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "pieces": content["pieces"][:1]}))
    gate, buffer, became = resumed(folder, settings=two)
    assert became.startswith("0 trajectories")
    assert buffer.ledger.refused == {"lost at resume": 8}
    assert gate.admit(0).batch == 3


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_another_place(index):
    """Whoever has made a checkpoint does not say which file of this machine is read."""
    content = json.loads(index.read_text())
    outside = index.parents[2] / "outside.safetensors"
    outside.write_bytes((index.parent / "0.safetensors").read_bytes())
    content["pieces"][0]["payload"] = str(outside)
    index.write_text(json.dumps(content))


DAMAGES = {
    "cut": lambda path: path.write_text("{"),
    "gone": lambda path: path.unlink(),
    "a pipe": as_pipe,
    "a link": as_link,
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "deep": lambda path: path.write_text("[" * 5000),
    "a list": lambda path: path.write_text("[]"),
    "other lists": lambda path: path.write_text('{"run": [], "pieces": {}}'),
    "other pieces": lambda path: path.write_text(
        json.dumps({**json.loads(path.read_text()), "pieces": [{"ticket": 1}]})
    ),
    "another place": of_another_place,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("file", "damage"),
    [(INDEX_FILE, damage) for damage in DAMAGES if damage != "gone"]
    + [("1.safetensors", damage) for damage in ("cut", "gone", "a pipe", "a link", "a directory")],
)
def test_a_buffer_that_cannot_be_read_is_lost_and_the_run_goes_on(tmp_path, file, damage):
    folder = saved(tmp_path / "c", *THREE)
    DAMAGES[damage](folder / BUFFER_FOLDER / file)
    gate, buffer, became = resumed(folder)
    assert "12 are lost: buffer cannot be read" in became
    assert buffer.held() == 0
    assert gate.admit(0).batch == 3


def test_what_cannot_be_written_is_left_out_and_lost(tmp_path):
    odd = piece(3, 0, oldest=3)
    odd.payload[0]["object"] = object()
    _, buffer, became = resumed(saved(tmp_path / "c", odd, THREE[1]))
    assert became.startswith("4 trajectories")
    assert buffer.ledger.refused == {"lost at resume": 4}


def test_what_has_gone_with_its_node_is_left_out_and_lost(tmp_path):
    async def opened(piece):
        if piece.ticket.shard == 0:
            raise PeerError("it is on a node that is lost")
        return piece.payload[0]

    _, buffer, became = resumed(saved(tmp_path / "c", piece(3, 0, oldest=3), THREE[1], opened=opened))
    assert became.startswith("4 trajectories")
    assert buffer.ledger.refused == {"lost at resume": 4}


def test_losses_of_several_resumes_add_up(tmp_path):
    strict = settings(max_staleness=0)
    _, buffer, _ = resumed(saved(tmp_path / "c", *THREE), settings=strict)
    (tmp_path / "d").mkdir()
    asyncio.run(save_buffer(tmp_path / "d", 3, buffer, strict, held))
    assert resumed(tmp_path / "d", settings=strict)[1].ledger.refused == {"lost at resume": 8}


def test_a_checkpoint_of_the_framework_alone_has_empty_books(tmp_path):
    _, buffer, became = resumed(tmp_path)
    assert buffer.ledger == Ledger()
    assert became.startswith("0 trajectories")


def fixed_lag(**changes):
    block = {"mode": "train", "deterministic": True, "train": {"max_staleness": 2}}
    return replace(SETTINGS, asynchrony=AsyncConfig.from_mapping(block), **{"save_every": 3, **changes})


def test_of_a_run_that_continues_bit_for_bit_the_buffer_does_not_depend_on_who_was_fast(tmp_path):
    """Version 3 is published: batches 3 and 4 are there, and batch 5 is being collected."""
    due = [piece(batch, shard, oldest=batch - 2) for batch in (3, 4) for shard in (0, 1)]
    early = piece(5, 1, oldest=3)
    slow = saved(tmp_path / "slow", *due, settings=fixed_lag())
    fast = saved(tmp_path / "fast", *due, early, settings=fixed_lag())
    for file in ("async_state.json", f"{BUFFER_FOLDER}/{INDEX_FILE}"):
        assert (slow / file).read_bytes() == (fast / file).read_bytes()
    gate, buffer, became = resumed(fast, settings=fixed_lag())
    assert became == "16 trajectories that had not been trained are there again"
    assert [gate.admit(shard).batch for shard in (0, 1)] == [5, 5]
    assert (buffer.ledger.produced, dict(buffer.ledger.refused)) == (24 + 16, {})
    # Where no checkpoint is due, the books are as they are.
    other = saved(tmp_path / "other", *due, early, settings=fixed_lag(save_every=0))
    assert read_ledger(other).produced == 24 + 20


def test_what_processes_know_is_kept_beside_the_buffer(tmp_path):
    folder = saved(tmp_path / "c", *THREE)
    assert ProcessKnowledge.read(folder) == ProcessKnowledge([], None)
    premise = {"logprobs": 0.1, "values": 1e-9, "keeps_values": True}
    ProcessKnowledge([{"3": [[{"return": torch.tensor([1.5])}], []]}, {}], premise).write(folder)
    known = ProcessKnowledge.read(folder)
    assert known.premise == premise
    first, second = known.rollouts
    assert first["3"][0][0]["return"].tolist() == [1.5]
    assert (first["3"][1], second) == ([], {})


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", ["cut", "a pipe", "a link", "a directory", "other"])
def test_what_processes_know_that_cannot_be_read_ends_the_run_in_a_sentence(tmp_path, damage):
    folder = saved(tmp_path / "c", *THREE)
    ProcessKnowledge([{}], None).write(folder)
    path = folder / BUFFER_FOLDER / KNOWN_FILE
    DAMAGES.get(damage, lambda path: write_tensors(path, {"rollouts": 1, "premise": None}))(path)
    with pytest.raises(ValueError, match=r"known\.safetensors cannot be read: .*; go on from another"):
        ProcessKnowledge.read(folder)
