"""Pieces are scored by whoever is first: an inference rank or the learner, each of them once."""

import asyncio
import itertools
import random
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.scores import ToScore
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.request_broker import request_broker
from rlinf_async.loops.scoring import ScoredPieces
from tests.loops.test_streaming_learner import HORIZON, Training, learner_of
from tests.loops.virtual import now, run, settle
from tests.making import accept, piece, plan, request, run_settings, ticket

PIECES = 8


def settings(*, micro_batch=1, **changes):
    """A batch of eight pieces on each learner rank, of which `micro_batch` are taken in together."""
    of = plan(**{"total_envs": PIECES, "shards_per_worker": PIECES} | changes)
    return run_settings(
        asynchrony=AsyncConfig.from_mapping({"mode": "full", "advanced": {"measure_ratios": False}}),
        plan=of,
        horizon=HORIZON,
        micro_batch_size=micro_batch * HORIZON,
        global_batch_size=of.total_envs * HORIZON,
        max_batch_size=3,
        normalizes=False,
        batches=3,
    )


def pieces_of(batch, rank=0):
    """Each of one trajectory, whose samples have numbers of their own."""
    for shard in range(PIECES):
        numbers = torch.arange(HORIZON).view(HORIZON, 1) + HORIZON * (shard + PIECES * (rank + 10 * batch))
        yield piece(ticket(shard=shard, batch=batch), rank=rank, payload={"number": numbers})


def numbers_of(batch, rank=0):
    """Those of all samples, in order."""
    pieces = pieces_of(batch, rank)
    return sorted(number for one in pieces for number in one.payload["number"].flatten().tolist())


def doubled(samples):
    """The scores of samples."""
    return {"logprobs": 2 * samples["number"], "values": None}


def give_scores(one):
    """Score a piece as inference does."""
    number = inputs(one.payload).samples["number"]
    one.scores.set_result({"logprobs": 2 * number.unflatten(0, (-1, 1))})


def inputs(payload):
    """As of a host: all samples of the piece, and a last observation."""
    number = torch.cat([payload["number"], payload["number"][-1:]]).flatten()
    return ToScore(samples={"number": number}, rows=None, size=len(number))


class Anchoring(Training):
    """Notes by whom the samples were scored. A score is the sample's double; it is checked."""

    def __init__(self, total=None):
        super().__init__()
        self.anchored, self.passes, self._total = [], [], total

    def anchor(self, rollout, scores=None):
        numbers = rollout["number"]
        if scores is None:
            self.passes.append(numbers.shape[1])
        else:
            assert torch.equal(scores["logprobs"][:-1], 2 * numbers)
        self.anchored += [(number, scores is None) for number in numbers.T.flatten().tolist()]

    def summed(self, sums):
        return self._total(sums) if self._total else sums


class Arriving:
    """The pieces of every batch in random parts, after random times; fills `PiecePort`."""

    def __init__(self, chance):
        self._chance, self._left = chance, {}

    async def take(self, batch, *, whole):
        left = self._left.setdefault(batch, list(pieces_of(batch)))
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 3.0)))
        taken = [left.pop(0) for _ in range(self._chance.randint(1, len(left)))]
        return taken, not left


class Inference:
    """Ranks that answer, and die, around the broker of a run; they act by the version that is published."""

    def __init__(self, of, chance):
        self.broker, self.of, self._chance = request_broker(of), of, chance
        self.version, self.answered = -1, 0

    async def published(self, version):
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 9.0)))
        self.version = max(version, self.version)

    async def serve(self, rank):
        for generation in itertools.count():
            while True:
                batch = await self.broker.take(rank, generation=generation)
                if batch is None:
                    return
                await asyncio.sleep(self._chance.choice((0.0, 0.25, 2.0)))
                if self._chance.random() < 0.1:
                    self.broker.rank_lost(rank, generation + 1)
                    break
                self.answered += 1
                self.broker.reply([one.key for one in batch], [self._answer(one.request) for one in batch])

    def _answer(self, asked):
        if asked.mode != "score":
            return "actions"
        return {"version": self.version, "scores": doubled(asked.payload["samples"])}

    async def play(self, shard):
        while True:
            await self.broker.act(request(shard))
            await asyncio.sleep(self._chance.choice((0.0, 0.5)))
            await asyncio.sleep(0.125)


def scored(of, policy, arriving, published, rank=0, to_score=inputs):
    return ScoredPieces(arriving, policy, of, rank=rank, published=published, inputs=to_score, values=True)


def test_every_piece_is_anchored_once_by_one_of_both_whatever_comes_first():
    helped = [share for seed in range(60) for share in shares_of_inference(seed)]
    assert helped.count(0.0) > 10
    assert sum(0.0 < share < 1.0 for share in helped) > 10


def shares_of_inference(seed):
    """A run with interleavings, deaths and times of `seed`; the share of each batch that inference scored."""
    chance = random.Random(seed)
    of = settings(micro_batch=chance.choice((1, 2, 4)), inference_ranks=chance.choice((1, 2)))
    training = Anchoring()

    async def lasting(work, *arguments):
        result = work(*arguments)
        await asyncio.sleep(chance.choice((0.0, 0.5, 4.0)))
        return result

    async def train():
        inference, learner = Inference(of, chance), learner_of(of, training)
        ranks = [asyncio.ensure_future(inference.serve(rank)) for rank in range(of.plan.inference_ranks)]
        playing = asyncio.ensure_future(inference.play(0))
        pieces = scored(of, inference.broker, Arriving(chance), inference.published)
        for batch in range(of.batches):
            training.anchored.clear()
            metrics = await learn_batch(
                batch=batch, pieces=pieces, learner=learner, streaming=True, compute=lasting
            )
            assert sorted(number for number, _ in training.anchored) == numbers_of(batch)
            shared = sum(not own for _, own in training.anchored) / len(training.anchored)
            assert metrics["train/scored_by_inference"] == shared
            told.append(shared)
        playing.cancel()
        await asyncio.wait([playing])
        inference.broker.close()
        await asyncio.gather(*ranks)

    told = []
    run(train(), order=seed)
    return told


async def test_a_learner_waits_for_no_scores_and_takes_back_what_inference_would_get_to_last():
    of, training = settings(), Anchoring()

    class Slow:
        """Gives scores of a piece after a minute, one after the other."""

        asked, given_up = [], 0

        async def act(self, asked):
            self.asked.append(asked.payload["samples"]["number"][0].item() // HORIZON)
            try:
                await asyncio.sleep(60.0 * len(self.asked))
            except asyncio.CancelledError:
                self.given_up += 1
                raise
            return {"version": 0, "scores": doubled(asked.payload["samples"])}

    async def lasting(work, *arguments):
        result = work(*arguments)
        await asyncio.sleep(1.0)
        return result

    policy = Slow()
    pieces = scored(of, policy, Handing(*pieces_of(0)), lambda version: asyncio.sleep(0))
    await learn_batch(
        batch=0, pieces=pieces, learner=learner_of(of, training), streaming=True, compute=lasting
    )
    await settle()
    assert now() == PIECES + 2.0  # to begin, for each piece, and to finish
    assert [number // HORIZON for number, _ in training.anchored[::HORIZON]] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(own for _, own in training.anchored)
    # Of the first piece only, a part more than there are ranks: the others were not asked for yet.
    assert policy.asked == [0, 0]
    assert policy.given_up == 2


def test_what_is_scored_when_the_learner_gets_there_is_taken_first():
    of, training = settings(micro_batch=2), Anchoring()
    given = [replace(one, scores=Future()) for one in pieces_of(0)]
    for index in (3, 5, 6):
        give_scores(given[index])
    learner = learner_of(of, training)
    learner.begin(0)
    accept(learner, given)
    seen = [(number // HORIZON, own) for number, own in training.anchored[::HORIZON]]
    # Of the second two, one is scored here: no piece's scores are thrown away on one rank.
    assert seen == [
        *[(3, False), (5, False)],
        *[(7, True), (6, False)],
        *[(2, True), (4, True)],
        *[(0, True), (1, True)],
    ]
    assert [index for index, one in enumerate(given) if one.scores.cancelled()] == [0, 1, 2, 4, 7]


def test_scores_of_a_rollout_that_ended_early_are_as_long_as_those_of_others():
    class Noting(Anchoring):
        def anchor(self, rollout, scores=None):
            if scores is not None:
                self.anchored.append(scores["logprobs"])

    of, training = settings(micro_batch=2), Noting()
    given = [replace(one, scores=Future()) for one in pieces_of(0)]
    for one, decisions in ((given[0], HORIZON), (given[1], 1)):
        one.scores.set_result({"logprobs": torch.ones(decisions + 1, 1)})
    learner = learner_of(of, training)
    learner.begin(0)
    accept(learner, given)
    (scores,) = training.anchored
    assert scores.shape == (HORIZON + 1, 2)
    assert torch.equal(scores[:2], torch.ones(2, 2))


def added_up(ranks):
    """For each rank, the sums over all of them, which come at a call of each."""
    meeting, said = threading.Barrier(ranks, timeout=30), [{} for _ in range(ranks)]

    def total(rank, sums):
        said[rank] = sums
        meeting.wait()
        added = {name: sum(one[name] for one in said) for name in sums}
        meeting.wait()
        return added

    return [partial(total, rank) for rank in range(ranks)]


@pytest.mark.parametrize("seed", range(20))
def test_ranks_of_a_sharded_model_make_the_same_passes_whoever_has_scores(seed):
    """Two learners in threads of their own, who meet where they add up; inference is a third."""
    chance = random.Random(seed)
    of = settings(micro_batch=chance.choice((1, 2, 4)), total_envs=2 * PIECES, learner_ranks=2)
    trainings = [Anchoring(total) for total in added_up(2)]
    given = [[replace(one, scores=Future()) for one in pieces_of(0, rank)] for rank in range(2)]

    def learn(rank):
        learner, left = learner_of(of, trainings[rank], rank=rank), list(given[rank])
        learner.begin(0)
        own = random.Random(100 * seed + rank)
        while left:
            size = own.randint(1, len(left))
            accept(learner, left[:size])
            del left[:size]

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for one in chance.sample([*given[0], *given[1]], k=12):
        if one.scores.set_running_or_notify_cancel():
            give_scores(one)
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert trainings[0].passes == trainings[1].passes
    for rank, training in enumerate(trainings):
        assert sorted(number for number, _ in training.anchored) == numbers_of(0, rank)


class Policy:
    """Scores a sample by its double, as `version`, in a second; fills `PolicyPort`."""

    def __init__(self, version=4):
        self.requests, self.at_once, self.most, self._version = [], 0, 0, version

    async def act(self, asked):
        self.requests.append(asked)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(1.0)
        finally:
            self.at_once -= 1
        return {"version": self._version, "scores": doubled(asked.payload["samples"])}


class Handing:
    """Hands over what it was given, all at once; fills `PiecePort`."""

    def __init__(self, *pieces):
        self._pieces = pieces

    async def take(self, batch, *, whole):
        return list(self._pieces), True


class Publication:
    """Waits two seconds for each version that it is asked for."""

    def __init__(self):
        self.asked = []

    async def __call__(self, version):
        self.asked.append(version)
        await asyncio.sleep(2.0)


async def test_a_piece_is_scored_in_requests_that_fit_and_its_scores_have_its_shape():
    policy, publication = Policy(), Publication()
    one = piece(ticket(batch=4), size=2, payload={"number": torch.arange(8.0).view(4, 2)})
    pieces = scored(settings(inference_ranks=3), policy, Handing(one, one), publication, rank=1)
    taken, last = await pieces.take(4, whole=False)
    assert last
    scores = [await asyncio.wrap_future(each.scores) for each in taken]
    expected = 2 * torch.cat([torch.arange(8.0), torch.tensor([6.0, 7.0])]).view(5, 2)
    assert all(torch.equal(each["logprobs"], expected) for each in scores)
    assert scores[0]["values"] is None
    # Numbers from 16 on are of no shard, neither for training nor for evaluation.
    assert [(each.size, each.shard, each.mode) for each in policy.requests] == [
        (size, 17, "score") for size in (3, 3, 3, 1) * 2
    ]
    assert {each.payload["values"] for each in policy.requests} == {True}
    assert len({each.number for each in policy.requests}) == 8
    assert policy.most == 4  # one for each inference rank, and one that waits
    assert publication.asked == [4]
    assert now() == 4.0  # two for the version, two for the requests, four at a time


@pytest.mark.parametrize("rows", [[0, 3, 4, 9], [7], []])
async def test_samples_without_a_gradient_are_in_no_request_and_the_scores_of_others_are_at_their_places(
    rows,
):
    def some(payload):
        whole, places = inputs(payload), torch.tensor(rows, dtype=torch.int64)
        asked = places if rows else torch.tensor([0])
        return replace(whole, samples={"number": whole.samples["number"][asked]}, rows=places)

    policy = Policy()
    one = piece(ticket(batch=4), size=2, payload={"number": torch.arange(1.0, 9.0).view(4, 2)})
    pieces = scored(settings(), policy, Handing(one), Publication(), to_score=some)
    (taken,), _ = await pieces.take(4, whole=False)
    scores = await asyncio.wrap_future(taken.scores)
    expected = torch.zeros(10)
    for row in rows:
        expected[row] = 2 * [1, 2, 3, 4, 5, 6, 7, 8, 7, 8][row]
    assert torch.equal(scores["logprobs"], expected.view(5, 2))
    assert sum(each.size for each in policy.requests) == max(1, len(rows))


async def test_scores_of_another_version_are_an_error():
    pieces = scored(settings(), Policy(5), Handing(*pieces_of(6)), Publication())
    taken, _ = await pieces.take(6, whole=False)
    with pytest.raises(RuntimeError, match="anchored at version 6 was scored by version 5"):
        await asyncio.wrap_future(taken[0].scores)


def test_an_error_of_inference_is_raised_where_the_scores_are_wanted():
    one, failed = next(pieces_of(0)), Future()
    failed.set_exception(ZeroDivisionError("no scores"))
    learner = learner_of(settings(), Anchoring())
    learner.begin(0)
    with pytest.raises(ZeroDivisionError, match="no scores"):
        learner.accept([replace(one, scores=failed)])


async def test_a_piece_that_is_taken_back_ends_the_wait_of_no_other():
    pieces = scored(settings(), Policy(0), Handing(*pieces_of(0)), Publication())
    taken, _ = await pieces.take(0, whole=False)
    await asyncio.sleep(1.0)
    assert taken[0].scores.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wrap_future(taken[0].scores)
    assert (await asyncio.wrap_future(taken[1].scores))["logprobs"].shape == (HORIZON + 1, 1)


async def test_what_a_rank_that_died_was_to_score_another_scores():
    of = settings(inference_ranks=2)
    broker = request_broker(of)
    pieces = scored(of, broker, Handing(next(pieces_of(0))), lambda version: asyncio.sleep(0))
    taken, _ = await pieces.take(0, whole=False)
    first = await broker.take(0)
    broker.rank_lost(0, 1)
    numbers = [one.key for one in first]
    answered = []
    while not taken[0].scores.done():
        batch = await broker.take(1)
        answered += [one.key for one in batch]
        answers = [{"version": 0, "scores": doubled(one.request.payload["samples"])} for one in batch]
        broker.reply([one.key for one in batch], answers)
        await settle()
    assert set(numbers) <= set(answered)
    assert torch.equal(taken[0].scores.result()["logprobs"].flatten(), 2.0 * torch.tensor([0, 1, 2, 3, 3]))


async def test_what_is_taken_back_no_rank_is_given():
    of = settings()
    broker = request_broker(of)
    pieces = scored(of, broker, Handing(*pieces_of(0)), lambda version: asyncio.sleep(0))
    taken, _ = await pieces.take(0, whole=False)
    await settle()
    for one in taken:
        one.scores.cancel()
    await settle()
    asking = asyncio.ensure_future(broker.act(request(1)))
    await settle()
    assert [one.request.mode for one in await broker.take(0)] == ["train"]
    asking.cancel()
    broker.close()
    assert await broker.take(0) is None
