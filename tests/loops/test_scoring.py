"""Pieces with the scores of inference, and the requests that bring them."""

import asyncio
import math

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.scoring import InferenceScorer, ScoredPieces, scored_pieces
from tests.loops.virtual import now, run, settle
from tests.making import piece, plan, run_settings, ticket


class Arriving:
    """Pieces of every batch, in groups that arrive a second after each other; fills `PiecePort`."""

    def __init__(self, *sizes, error=None):
        self.asked, self._sizes, self._error = [], sizes, error
        self._coming = iter(())

    async def take(self, batch, *, whole):
        if batch not in self.asked:
            parts = iter(range(sum(self._sizes)))
            self._coming = iter([[next(parts) for _ in range(size)] for size in self._sizes])
        self.asked.append(batch)
        assert not whole
        await asyncio.sleep(1.0)
        if self._error is not None:
            raise self._error
        parts = next(self._coming)
        return [piece(ticket(batch=batch), part=part) for part in parts], parts[-1] == sum(self._sizes) - 1


class Scoring:
    """Gives each piece its part and the version as its score, after so many seconds; fills `Scorer`."""

    def __init__(self, seconds=lambda part: 0.0, error=None):
        self.cancelled, self._seconds, self._error = [], seconds, error

    async def score(self, one, version):
        try:
            await asyncio.sleep(self._seconds(one.part))
        except asyncio.CancelledError:
            self.cancelled.append(one.part)
            raise
        if self._error is not None:
            raise self._error
        return {"scored": (one.part, version)}


def brought(taken):
    pieces, last = taken
    return [(one.part, one.scores and one.scores["scored"]) for one in pieces], last


def test_the_first_pieces_come_as_they_are_and_the_others_when_their_scores_do():
    async def learn():
        pieces = ScoredPieces(Arriving(1, 4), Scoring(lambda part: 10.0 - part), first=2)
        taken = [(*brought(await pieces.take(7, whole=False)), now()) for _ in range(5)]
        assert taken == [
            ([(0, None)], False, 1.0),
            ([(1, None)], False, 2.0),
            ([(4, (4, 7))], False, 8.0),
            ([(3, (3, 7))], False, 9.0),
            ([(2, (2, 7))], True, 10.0),
        ]

    run(learn())


def test_a_whole_batch_comes_when_the_last_score_is_there():
    async def learn():
        arriving = Arriving(2, 1)
        pieces = ScoredPieces(arriving, Scoring(lambda part: 3.0 * part), first=1)
        for batch, at in ((0, 8.0), (1, 16.0)):
            assert brought(await pieces.take(batch, whole=True)) == (
                [(0, None), (1, (1, batch)), (2, (2, batch))],
                True,
            )
            assert now() == at
        assert arriving.asked == [0, 0, 1, 1]

    run(learn())


def test_what_is_ready_together_comes_together_and_nothing_twice():
    async def learn():
        pieces = ScoredPieces(Arriving(3), Scoring(lambda part: 1.0), first=1)
        assert brought(await pieces.take(0, whole=False)) == ([(0, None)], False)
        await asyncio.sleep(5.0)
        assert brought(await pieces.take(0, whole=False)) == ([(1, (1, 0)), (2, (2, 0))], True)

    run(learn())


@pytest.mark.parametrize("part", ["pieces", "scores"])
def test_an_error_on_the_way_is_raised_to_whoever_takes(part):
    error = ZeroDivisionError("no")

    async def learn():
        pieces = ScoredPieces(
            Arriving(2, error=error if part == "pieces" else None),
            Scoring(error=error if part == "scores" else None),
            first=1,
        )
        while True:
            await pieces.take(0, whole=True)

    with pytest.raises(ZeroDivisionError, match="no"):
        run(learn())


def test_failing_it_ends_what_waits_now_and_later_and_asks_for_no_more_scores():
    async def learn():
        scoring = Scoring(lambda part: math.inf)
        pieces = ScoredPieces(Arriving(3), scoring, first=1)
        await pieces.take(0, whole=False)
        waiting = asyncio.ensure_future(pieces.take(0, whole=False))
        await settle()
        pieces.fail(RuntimeError("the run is over"))
        for take in (waiting, pieces.take(0, whole=False)):
            with pytest.raises(RuntimeError, match="the run is over"):
                await take
        await settle()
        assert sorted(scoring.cancelled) == [1, 2]

    run(learn())


def test_a_learner_that_is_cancelled_leaves_no_request_behind_and_no_error():
    async def learn():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        scoring = Scoring(lambda part: math.inf)
        taking = asyncio.ensure_future(ScoredPieces(Arriving(2), scoring, first=0).take(0, whole=False))
        await asyncio.sleep(2.0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await settle()
        assert sorted(scoring.cancelled) == [0, 1]
        assert errors == []

    run(learn())


def test_scores_that_do_not_come_are_named_at_the_deadline():
    async def learn():
        pieces = ScoredPieces(Arriving(1), Scoring(lambda part: math.inf), first=0, deadline_s=9.0)
        await pieces.take(3, whole=False)

    with pytest.raises(DeadlineError, match="9 s for pieces of batch 3, or scores"):
        run(learn())


class Policy:
    """Scores a sample by its double, as `version`; fills `PolicyPort`."""

    def __init__(self, version=4):
        self.requests, self._version = [], version

    async def act(self, request):
        self.requests.append(request)
        await asyncio.sleep(1.0)
        inputs = request.payload["samples"]["inputs"]
        return {"version": self._version, "scores": {"logprobs": 2 * inputs, "values": None}}


class Publication:
    """Waits two seconds for each version that it is asked for."""

    def __init__(self):
        self.asked = []

    async def __call__(self, version):
        self.asked.append(version)
        await asyncio.sleep(2.0)


def scorer(policy, publication, **changes):
    given = {"inputs": lambda payload: {"inputs": payload}, "values": True, "asker": 9, "most": 4}
    return InferenceScorer(policy, publication, **given | changes)


def sized(samples, size):
    return piece(ticket(batch=4), size=size, payload=torch.arange(float(samples)))


def test_a_piece_is_scored_in_requests_that_fit_and_its_scores_have_its_shape():
    async def learn():
        policy = Policy()
        scores = await scorer(policy, Publication()).score(sized(10, size=2), 4)
        assert scores["logprobs"].tolist() == (2 * torch.arange(10.0)).reshape(5, 2).tolist()
        assert scores["values"] is None
        assert [(one.size, one.shard, one.mode) for one in policy.requests] == [
            (4, 9, "score"),
            (4, 9, "score"),
            (2, 9, "score"),
        ]
        assert {one.payload["values"] for one in policy.requests} == {True}
        assert len({one.number for one in policy.requests}) == 3
        assert now() == 3.0  # two for the version, one for all of the requests together

    run(learn())


def test_each_version_is_waited_for_once_however_many_pieces_there_are():
    async def learn():
        publication = Publication()
        five = scorer(Policy(5), publication)
        await asyncio.gather(five.score(sized(2, size=1), 5), five.score(sized(2, size=1), 5))
        await five.score(sized(2, size=1), 5)
        assert publication.asked == [5]
        with pytest.raises(RuntimeError, match="anchored at version 6 was scored by version 5"):
            await five.score(sized(2, size=1), 6)
        assert publication.asked == [5, 6]

    run(learn())


def test_one_piece_that_is_given_up_does_not_end_the_wait_of_the_others():
    async def learn():
        one = scorer(Policy(), Publication())
        first, second = (asyncio.ensure_future(one.score(sized(2, size=2), 4)) for _ in range(2))
        await asyncio.sleep(1.0)
        first.cancel()
        assert (await second)["logprobs"].tolist() == [[0.0, 2.0]]

    run(learn())


def pieces_of_a_run(arriving, policy, *, publication):
    """Those of learner rank 1, in a run of four shards of two environments; a piece fills a micro-batch."""
    block = {"mode": "full", "train": {"scorer": "inference"}, "advanced": {"deadline_s": 50.0}}
    settings = run_settings(
        asynchrony=AsyncConfig.from_mapping(block),
        plan=plan(total_envs=8, shards_per_worker=4),
        horizon=3,
        micro_batch_size=6,
        global_batch_size=24,
        max_batch_size=5,
    )
    return scored_pieces(
        arriving,
        policy,
        settings,
        rank=1,
        published=publication,
        inputs=lambda _: {"inputs": torch.arange(8.0)},
        values=False,
    )


def test_a_run_asks_under_a_number_of_each_learner_rank_that_no_shard_has():
    async def learn():
        policy = Policy(0)
        pieces = pieces_of_a_run(Arriving(4), policy, publication=Publication())
        parts, last = await pieces.take(0, whole=True)
        assert [one.scores is None for one in parts] == [True, False, False, False]
        assert last
        assert {(one.shard, one.payload["values"]) for one in policy.requests} == {(9, False)}
        assert [one.size for one in policy.requests] == [5, 3] * 3

    run(learn())


def test_a_run_waits_for_scores_until_its_deadline():
    async def never(version):
        await asyncio.sleep(math.inf)

    with pytest.raises(DeadlineError, match="50 s for pieces of batch 0, or scores"):
        run(pieces_of_a_run(Arriving(2), Policy(), publication=never).take(0, whole=True))
