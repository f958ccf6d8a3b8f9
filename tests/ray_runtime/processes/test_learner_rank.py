"""What a learner rank does for every host, with the least that a host has to give."""

import asyncio
import errno
import math
import threading
from dataclasses import replace
from traceback import StackSummary
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")

from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from rlinf_async.config import AsyncConfig
from rlinf_async.core.premise import Premise
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank, as_save_error
from rlinf_async.ray_runtime.processes.rollout_data import LearnerRanks
from rlinf_async.wire.connection import Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.peers import replies
from tests.making import piece, run_settings, ticket


class Keeping:
    """Keeps what it is given."""

    def __init__(self, used):
        self.used, self.accepted, self.scores = used, [], []

    def begin(self, batch):
        self.used.append(threading.current_thread().name)

    def accept(self, pieces):
        self.accepted += [one.payload for one in pieces]
        self.scores += [one.scores for one in pieces]

    def to_score(self, payload):
        raise NotImplementedError("no version is published")

    def finish(self):
        return {"train/pieces": float(len(self.accepted))}


class Sender:
    """Says what it was asked to send."""

    def __init__(self):
        self.types, self.offered = None, []

    def expect(self, types, *, keeps):
        self.types, self.keeps = types, keeps

    async def offer(self, version, coordinator, spans):
        self.offered.append(version)
        return 0.25


class Rank(LearnerRank):
    def __init__(self):
        self.used, self.made, self.senders = [], [], []
        self.start_learning(rank=3, initializer=self.used.append, initargs=("begun",))

    def make_learner(self, settings, busy):
        self.made.append(Keeping(self.used))
        return self.made[-1]

    def make_sender(self):
        self.senders.append(Sender())
        return self.senders[-1]


def no_room(*arguments):
    raise OSError("no space left on device")


def torn(*arguments):
    raise CheckpointException("save", {0: (OSError("rank 0 could not write"), StackSummary())})


@pytest.mark.parametrize(("save", "said"), [(no_room, "no space left"), (torn, "rank 0 could not write")])
def test_a_checkpoint_that_fails_is_said_and_the_rank_goes_on(save, said):
    rank = Rank()
    rank.save_checkpoint = save
    assert said in asyncio.run(rank.try_to_save("folder", 3))
    given = []
    rank.save_checkpoint = lambda *arguments: given.append((*arguments, threading.current_thread().name))
    assert asyncio.run(rank.try_to_save("folder", 4)) is None
    assert given == [("folder", 4, "learner_0")]


class Coordinator:
    """Has one piece for each batch, which is the last."""

    def __init__(self, rank):
        self.asked, self._rank = [], rank
        self.address = SimpleNamespace(remote=self._address)
        self._listener = Listener(Listening.PACE, replies(self._take))

    async def _address(self, node):
        return self._listener.address(node)

    async def _take(self, name, rank, batch, whole):
        assert name == "take"
        self.asked.append((rank, batch, whole))
        found = piece(ticket(batch=batch), rank=rank, payload={"of": batch})
        await LearnerRanks([None] * rank + [await self._rank.piece_address()]).give(found)
        return [replace(found, payload=None)], True


def learn(rank, coordinator, *, batches, streaming=True):
    asynchrony = AsyncConfig.from_mapping({"mode": "full" if streaming else "train"})
    settings = run_settings(asynchrony=asynchrony, batches=batches)

    async def run():
        return [await rank.learn(batch, settings, object(), coordinator) for batch in range(batches)]

    return asyncio.run(run())


def test_one_learner_trains_all_batches_in_one_thread_of_its_own():
    rank = Rank()
    coordinator = Coordinator(rank)
    metrics = learn(rank, coordinator, batches=3)
    (learner,) = rank.made
    assert learner.accepted == [{"of": 0}, {"of": 1}, {"of": 2}]
    assert [one["train/pieces"] for one in metrics] == [1.0, 2.0, 3.0]
    assert all(0.0 <= one["busy"] <= 1.0 for one in metrics)
    assert rank.used[0] == "begun"
    assert len(set(rank.used[1:])) == 1
    assert rank.used[1] != threading.current_thread().name


@pytest.mark.parametrize("streaming", [True, False])
def test_a_whole_batch_is_waited_for_unless_the_run_streams(streaming):
    rank = Rank()
    coordinator = Coordinator(rank)
    learn(rank, coordinator, batches=2, streaming=streaming)
    assert coordinator.asked == [(3, 0, not streaming), (3, 1, not streaming)]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("premise", "asked"), [(None, False), (Premise(alike=False), False), (Premise(alike=True), True)]
)
async def test_inference_is_asked_for_scores_once_it_has_been_seen_to_compute_what_the_learner_does(
    premise, asked
):
    class Examining(Rank):
        def wants_values(self, settings):
            return True

    rank = Examining()
    coordinator = Coordinator(rank)
    coordinator.weights_published = SimpleNamespace(remote=lambda version: asyncio.sleep(math.inf))
    channel = SimpleNamespace(address=SimpleNamespace(remote=print))
    settings = run_settings(asynchrony=AsyncConfig.from_mapping({"mode": "full"}), batches=2)
    for batch in range(2):
        await rank.learn(batch, settings, {"": channel}, coordinator)
        rank.premise = premise
    for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
        waiting.cancel()
    assert [one is not None for one in rank.made[0].scores] == [False, asked]


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_a_batch_draws_follows_from_its_number_in_a_deterministic_run(deterministic):
    asynchrony = AsyncConfig.from_mapping({"mode": "train", "deterministic": deterministic})
    settings = run_settings(asynchrony=asynchrony, batches=3)

    async def drawn(*batches):
        rank, found = Rank(), {}
        for batch in batches:
            await rank.learn(batch, settings, object(), Coordinator(rank))
            found[batch] = torch.rand(1).item()
        return found

    whole, rest = asyncio.run(drawn(0, 1, 2)), asyncio.run(drawn(2))
    assert (rest[2] == whole[2]) == deterministic
    assert len(set(whole.values())) == 3


def test_the_weights_of_every_batch_are_offered_as_the_next_version():
    rank = Rank()
    beside = learn(rank, Coordinator(rank), batches=2)
    assert [one["publication_seconds"] for one in beside] == [0.25, 0.25]
    assert [sender.offered for sender in rank.senders] == [[1, 2]]


def test_the_premise_of_a_run_is_known_to_the_one_that_goes_on():
    rank, successor = Rank(), Rank()
    assert asyncio.run(rank.known_premise()) is None
    rank.premise = Premise(logprobs=0.1, values=0.2, keeps_values=True)
    asyncio.run(successor.resume_premise(asyncio.run(rank.known_premise())))
    assert successor.premise == rank.premise
    asyncio.run(successor.resume_premise(None))
    assert successor.premise is None


def test_what_receivers_hold_is_known_before_the_first_offer():
    rank = Rank()
    asyncio.run(rank.expect_receivers({"weight": "float32"}, True))
    assert rank.sender.types == {"weight": "float32"}
    assert len(rank.senders) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_save_that_the_system_refuses_is_named_by_its_words(wrapped):
    full = OSError(errno.ENOSPC, "No space left on device", "/run/checkpoints/0_0.distcp")
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = full
    if wrapped:
        error = CheckpointException("write", {0: _wrap_exception(error)})
    assert str(as_save_error(error)) == f"OSError: {full}"
    assert str(as_save_error(ValueError("no model"))) == "ValueError: no model"
