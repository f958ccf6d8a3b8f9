from contextlib import asynccontextmanager

import pytest

from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.request_broker import Pending
from tests.loops.virtual import run
from tests.making import request

A, B, C = (Pending(number=number, request=request(payload=name)) for number, name in enumerate("abc"))


class Requests:
    """Batches of requests, and what became of them."""

    def __init__(self, *batches):
        self._batches = list(batches)
        self.answered, self.failed = [], []

    async def take(self):
        return self._batches.pop(0) if self._batches else None

    @asynccontextmanager
    async def answering(self, batch):
        answers = []
        try:
            yield answers
        except ZeroDivisionError:
            self.failed.append(batch)
            raise
        self.answered.append(answers)


class Policy:
    def __init__(self, breaks_at=None):
        self._breaks_at = breaks_at

    async def act(self, batch):
        if self._breaks_at in batch:
            raise ZeroDivisionError
        return [asked.request.payload.upper() for asked in batch]


def test_every_batch_is_answered_in_order_until_the_shards_have_hung_up():
    requests = Requests([A, B], [C])
    run(serve_policy(requests=requests, policy=Policy()))
    assert requests.answered == [["A", "B"], ["C"]]


def test_a_failing_forward_pass_ends_the_loop_inside_the_block_that_tells_its_requesters():
    requests = Requests([A], [B], [C])
    with pytest.raises(ZeroDivisionError):
        run(serve_policy(requests=requests, policy=Policy(breaks_at=B)))
    assert (requests.answered, requests.failed) == ([["A"]], [[B]])
