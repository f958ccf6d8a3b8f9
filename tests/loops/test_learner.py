import asyncio

import pytest

from rlinf_async.loops.learner import WAITING_METRIC, PrefetchedPieces, learn_batch
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


async def test_an_error_of_the_learner_leaves_no_call_behind():
    class Failing(Learner):
        def accept(self, pieces):
            raise RuntimeError("no gradient")

    with pytest.raises(RuntimeError, match="no gradient"):
        await learn_batch(batch=0, pieces=Pieces([A], [B]), learner=Failing(), streaming=True)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


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


class Batches:
    """Batches of `pieces` pieces, which come one at a time."""

    def __init__(self, pieces=1):
        self.asked, self._pieces = [], pieces

    async def take(self, batch, *, whole):
        self.asked.append((batch, whole))
        part = sum(of == batch for of, _ in self.asked)
        return [piece(ticket(batch=batch), part=part)], part == self._pieces


@pytest.mark.parametrize("whole", [False, True])
async def test_pieces_of_the_next_batch_are_fetched_ahead_and_no_further(whole):
    batches = Batches()
    pieces, seen = PrefetchedPieces(batches, until=3, together=1), []
    for batch in range(3):
        (one,), last = await pieces.take(batch, whole=whole)
        await asyncio.sleep(1.0)
        seen.append((one.ticket.batch, last, len(batches.asked)))
    assert batches.asked == [(0, whole), (1, whole), (2, whole)]
    assert seen == [(0, True, 2), (1, True, 3), (2, True, 3)]


@pytest.mark.parametrize(("together", "ahead"), [(1, 1), (2, 2), (3, 3), (5, 3)])
async def test_as_many_pieces_as_a_batch_begins_with_are_fetched_ahead(together, ahead):
    batches = Batches(pieces=3)
    pieces = PrefetchedPieces(batches, until=2, together=together)
    for part in (1, 2, 3):
        (one,), last = await pieces.take(0, whole=False)
        assert (one.part, last) == (part, part == 3)
    await asyncio.sleep(1.0)
    assert batches.asked[3:] == [(1, False)] * ahead
    first, last = await pieces.take(1, whole=False)
    assert ([one.part for one in first], last) == (list(range(1, ahead + 1)), ahead == 3)
    for part in range(ahead + 1, 4):
        (one,), last = await pieces.take(1, whole=False)
        assert (one.part, last) == (part, part == 3)


async def test_what_has_prevented_fetching_ahead_is_raised_to_whoever_takes():
    class Broken(Batches):
        async def take(self, batch, *, whole):
            if batch:
                raise ZeroDivisionError
            return await super().take(batch, whole=whole)

    pieces = PrefetchedPieces(Broken(), until=2, together=1)
    await pieces.take(0, whole=False)
    await asyncio.sleep(1.0)
    with pytest.raises(ZeroDivisionError):
        await pieces.take(1, whole=False)
