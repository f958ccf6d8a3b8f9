import asyncio

import pytest

from rlinf_async.loops.learner import WAITING_METRIC, learn_batch
from tests.loops.virtual import run
from tests.making import piece, ticket

A, B, C = (piece(ticket(shard=shard)) for shard in range(3))


class Pieces:
    """Hands over what `arrivals` lists, call by call."""

    def __init__(self, *arrivals):
        self._arrivals, self.asked = list(arrivals), []

    async def take(self, batch, *, whole):
        self.asked.append((batch, whole))
        arrived = self._arrivals.pop(0)
        return arrived, not self._arrivals


class Learner:
    def __init__(self):
        self.lines = []

    def begin(self, batch):
        self.lines.append(("begin", batch))

    def accept(self, pieces):
        self.lines.append(("accept", pieces))

    def finish(self):
        self.lines.append(("finish",))
        return {"loss": 1.0}


def test_a_streaming_learner_is_handed_what_arrives_as_it_arrives():
    pieces, learner = Pieces([A], [B, C]), Learner()
    metrics = run(learn_batch(batch=5, pieces=pieces, learner=learner, streaming=True))
    assert learner.lines == [("begin", 5), ("accept", [A]), ("accept", [B, C]), ("finish",)]
    assert pieces.asked == [(5, False), (5, False)]
    assert metrics == {"loss": 1.0, WAITING_METRIC: 0.0}


def test_without_streaming_the_whole_batch_is_handed_over_at_once():
    pieces, learner = Pieces([A, B]), Learner()
    run(learn_batch(batch=5, pieces=pieces, learner=learner, streaming=False))
    assert learner.lines == [("begin", 5), ("accept", [A, B]), ("finish",)]
    assert pieces.asked == [(5, True)]


def test_the_next_pieces_are_fetched_while_the_learner_computes_elsewhere():
    pieces, learner = Pieces([A], [B]), Learner()
    asked_meanwhile = []

    async def elsewhere(work, *arguments):
        await asyncio.sleep(0)
        asked_meanwhile.append(len(pieces.asked))
        return work(*arguments)

    run(learn_batch(batch=5, pieces=pieces, learner=learner, streaming=True, compute=elsewhere))
    assert learner.lines == [("begin", 5), ("accept", [A]), ("accept", [B]), ("finish",)]
    # Calls that had been made when begin, the two accepts and finish were about to be done.
    assert asked_meanwhile == [1, 2, 2, 2]


def test_an_error_of_the_learner_leaves_no_call_behind():
    class Failing(Learner):
        def accept(self, pieces):
            raise RuntimeError("no gradient")

    async def attempt():
        with pytest.raises(RuntimeError, match="no gradient"):
            await learn_batch(batch=0, pieces=Pieces([A], [B]), learner=Failing(), streaming=True)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert run(attempt()) == 1


def test_only_the_time_in_which_there_is_nothing_to_train_on_is_waiting():
    """The second pieces come after 5 s, of which the learner trains for 3."""

    class Slow(Pieces):
        async def take(self, batch, *, whole):
            await asyncio.sleep(5.0 if len(self._arrivals) == 1 else 1.0)
            return await super().take(batch, whole=whole)

    async def training(work, *arguments):
        await asyncio.sleep(3.0 if work.__name__ == "accept" else 0.0)
        return work(*arguments)

    pieces = Slow([A], [B])
    metrics = run(learn_batch(batch=5, pieces=pieces, learner=Learner(), streaming=True, compute=training))
    assert metrics[WAITING_METRIC] == 1.0 + (5.0 - 3.0)
