import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.rlinf.trajectory_channel import PieceClient
from tests.loops.virtual import run


class Channel:
    """Answers every call at once with one piece, which is the batch's last."""

    def __init__(self):
        self.asked = []
        self.take_pieces = SimpleNamespace(remote=self._take)

    async def _take(self, rank, batch, whole):
        self.asked.append((rank, batch, whole))
        payload = asyncio.get_running_loop().create_future()
        payload.set_result({"of": batch})
        ticket = Ticket(shard=0, batch=batch, epoch=0, place=0, version=batch)
        size = {"size": 1, "oldest": batch, "newest": batch, "env_steps": 1}
        return [Piece(ticket=ticket, part=0, rank=rank, payload=[payload], **size)], True


def test_pieces_of_the_next_batch_are_fetched_ahead_and_no_further():
    async def learn():
        channel = Channel()
        client, seen = PieceClient(channel, rank=1, until=3), []
        for batch in range(3):
            (piece,), last = await client.take(batch, whole=False)
            await asyncio.sleep(0)
            seen.append((piece.payload, last, len(channel.asked)))
        return channel.asked, seen

    asked, seen = run(learn())
    assert asked == [(1, 0, False), (1, 1, False), (1, 2, False)]
    assert seen == [({"of": 0}, True, 2), ({"of": 1}, True, 3), ({"of": 2}, True, 3)]
