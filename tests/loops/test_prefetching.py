import asyncio

import pytest

from rlinf_async.loops.prefetching import PrefetchedPieces
from tests.loops.virtual import run
from tests.making import piece, ticket


class Batches:
    """Batches of `pieces` pieces, which come one at a time."""

    def __init__(self, pieces=1):
        self.asked, self._pieces = [], pieces

    async def take(self, batch, *, whole):
        self.asked.append((batch, whole))
        part = sum(of == batch for of, _ in self.asked)
        return [piece(ticket(batch=batch), part=part)], part == self._pieces


@pytest.mark.parametrize("whole", [False, True])
def test_pieces_of_the_next_batch_are_fetched_ahead_and_no_further(whole):
    async def learn():
        batches = Batches()
        pieces, seen = PrefetchedPieces(batches, until=3, together=1), []
        for batch in range(3):
            (one,), last = await pieces.take(batch, whole=whole)
            await asyncio.sleep(1.0)
            seen.append((one.ticket.batch, last, len(batches.asked)))
        return batches.asked, seen

    asked, seen = run(learn())
    assert asked == [(0, whole), (1, whole), (2, whole)]
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


def test_what_has_prevented_fetching_ahead_is_raised_to_whoever_takes():
    class Broken(Batches):
        async def take(self, batch, *, whole):
            if batch:
                raise ZeroDivisionError
            return await super().take(batch, whole=whole)

    async def learn():
        pieces = PrefetchedPieces(Broken(), until=2, together=1)
        await pieces.take(0, whole=False)
        await asyncio.sleep(1.0)
        await pieces.take(1, whole=False)

    with pytest.raises(ZeroDivisionError):
        run(learn())
