"""What a checkpoint has beside the framework's files: the books, the buffer, and what processes know."""

import asyncio
import json
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.checkpoints.saved_buffer import (
    BUFFER_FOLDER,
    INDEX_FILE,
    KNOWN_FILE,
    STATE_FILE,
    ProcessKnowledge,
    Resumed,
    extended,
    read_ledger,
    read_tensors,
    resume_buffer,
    save_buffer,
    write_ledger,
    write_tensors,
)
from tests.making import piece, plan, run_settings, ticket

PLAN = plan(total_envs=8)
SIZES = dict.fromkeys(("global_batch_size", "micro_batch_size", "max_batch_size"), 8)


def settings(*, max_staleness=2, proximal="recomputed", **changes):
    levels = {"mode": "full", "train": {"max_staleness": max_staleness}}
    asynchrony = AsyncConfig.from_mapping({**levels, "advanced": {"proximal": proximal}})
    given = {"asynchrony": asynchrony, "plan": PLAN, "horizon": 4, "batches": 9, **SIZES}
    return run_settings(**given | changes)


SETTINGS = settings()


def collected(batch, shard, *, oldest, plan=PLAN, part=0):
    """A piece whose data is the number of its batch, and a picture."""
    data = {"actions": torch.full((3,), float(batch)), "inputs": {"image": torch.ones(2).bfloat16()}}
    of = ticket(shard, batch, version=oldest)
    return piece(of, part=part, size=plan.piece_size, env_steps=16, payload=[data])


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


THREE = (collected(3, 0, oldest=2), collected(3, 1, oldest=3), collected(5, 0, oldest=3))


def test_what_was_not_trained_waits_again_and_is_not_collected_twice(tmp_path):
    gate, buffer, became = resumed(saved(tmp_path / "c", *THREE))
    assert became == "12 trajectories that had not been trained are restored"
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
    assert became == "4 trajectories that had not been trained are restored; 8 are lost: they are too old"
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
    of = plan(total_envs=8, learner_ranks=2, shards_per_worker=1)
    two = settings(plan=of)
    whole = [collected(4, 0, oldest=3, plan=of, part=part) for part in (0, 1)]
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
    odd = collected(3, 0, oldest=3)
    odd.payload[0]["object"] = object()
    _, buffer, became = resumed(saved(tmp_path / "c", odd, THREE[1]))
    assert became.startswith("4 trajectories")
    assert buffer.ledger.refused == {"lost at resume": 4}


def test_what_has_gone_with_its_node_is_left_out_and_lost(tmp_path):
    async def opened(piece):
        if piece.ticket.shard == 0:
            raise PeerError("it is on a node that is lost")
        return piece.payload[0]

    _, buffer, became = resumed(saved(tmp_path / "c", collected(3, 0, oldest=3), THREE[1], opened=opened))
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
    due = [collected(batch, shard, oldest=batch - 2) for batch in (3, 4) for shard in (0, 1)]
    early = collected(5, 1, oldest=3)
    slow = saved(tmp_path / "slow", *due, settings=fixed_lag())
    fast = saved(tmp_path / "fast", *due, early, settings=fixed_lag())
    for file in ("async_state.json", f"{BUFFER_FOLDER}/{INDEX_FILE}"):
        assert (slow / file).read_bytes() == (fast / file).read_bytes()
    gate, buffer, became = resumed(fast, settings=fixed_lag())
    assert became == "16 trajectories that had not been trained are restored"
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


# The books.


@pytest.mark.parametrize("produced", [9, 14])
def test_books_are_read_as_they_were_written(tmp_path, produced):
    books = Ledger(produced=produced, trained=6, env_steps_trained=600, refused=Counter(stale=3))
    write_ledger(tmp_path, version=4, ledger=books)
    assert read_ledger(tmp_path) == books
    assert read_ledger(tmp_path).in_flight == produced - 9


def test_without_books_they_are_empty(tmp_path):
    assert read_ledger(tmp_path) == Ledger()


BOOKS = {"version": 1, "produced": 3, "trained": 1, "env_steps_trained": 10, "refused": {"stale": 1}}


@pytest.mark.parametrize("name", ["produced", "trained", "env_steps_trained", "refused"])
@pytest.mark.parametrize("value", [None, "3", -1, 2.5, True, [1], {"stale": "x"}])
def test_books_of_somebody_else_that_are_none_are_named(tmp_path, name, value):
    (tmp_path / STATE_FILE).write_text(json.dumps({**BOOKS, name: value}))
    with pytest.raises(ValueError, match=r"async_state\.json lacks counts of trajectories"):
        read_ledger(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, "[]", "3", "{}"])
def test_books_that_are_damaged_are_named(tmp_path, text):
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(ValueError, match=r"async_state\.json .*go on from another checkpoint"):
        read_ledger(tmp_path)


def test_books_are_neither_read_through_a_link_nor_waited_for_at_a_pipe(tmp_path):
    (tmp_path / "elsewhere").write_text(json.dumps(BOOKS))
    (tmp_path / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="it is a symbolic link"):
        read_ledger(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    os.mkfifo(tmp_path / STATE_FILE)
    with pytest.raises(ValueError, match="it is no file"):
        read_ledger(tmp_path)


# The file of a tree of tensors.


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


def test_what_is_written_is_read_again(tmp_path):
    shared = torch.arange(6.0)
    value = {
        "bf16": torch.randn(3, 2).bfloat16(),
        "flags": torch.tensor([True, False]),
        "both": [shared, shared[2:4], shared],
        "strided": torch.arange(6).reshape(2, 3).T,
        "nested": {"none": None, "pair": (1, 2.5), "text": "pick it up", "empty": {}},
        "array": np.arange(4, dtype=np.int16),
        "texts": np.array(["a", "bc"]),
        "nothing": torch.empty(0, 3),
    }
    write_tensors(tmp_path / "0.safetensors", value)
    assert same(value, read_tensors(tmp_path / "0.safetensors"))


def test_an_object_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a object is neither"):
        write_tensors(tmp_path / "0.safetensors", {"it": object()})


@pytest.mark.parametrize("left", [0, 5, 40, 200])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path, left):
    path = tmp_path / "0.safetensors"
    write_tensors(path, {"weights": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"0.safetensors cannot be read"):
        read_tensors(path)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match=r"cannot be written|No such file"):
        write_tensors(tmp_path / "nowhere" / "0.safetensors", {})
    with pytest.raises(OSError, match="No such file"):
        read_tensors(tmp_path / "0.safetensors")


def test_a_deterministic_run_that_had_ended_says_that_it_is_extended(tmp_path):
    whole = replace(Resumed(kept=0, lost=0), rollouts=frozenset({(3, "0/0"), (4, "0/0")}))
    of_run = fixed_lag(batches=9)
    assert extended(whole, 3, of_run) == ""
    sentence = extended(Resumed(kept=0, lost=0), 3, of_run)
    assert "at step 3, with no rollouts" in sentence
    assert "a lag below 2" in sentence
    # Nothing would have been collected for what is behind the end of this run.
    assert extended(replace(whole, rollouts=frozenset({(3, "0/0")})), 3, fixed_lag(batches=4)) == ""
    assert extended(Resumed(kept=0, lost=0), 3, settings()) == ""
