from contextlib import asynccontextmanager

import pytest

from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.request_broker import Pending
from rlinf_async.observe.spans import SpanLog, read_spans
from tests.loops.virtual import run
from tests.making import request

A, B, C = (Pending(request=request(payload=name)) for name in "abc")


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


def test_passes_are_spans_by_what_they_were_for_and_waits_are_between_them(tmp_path):
    asked = [request(shard, size=size, payload="a") for shard, size in ((4, 2), (6, 3))]
    scored = [request(size=size, payload="s", mode="score") for size in (5, 6)]
    batches = [[Pending(request=one) for one in batch] for batch in (asked, scored)]
    run(serve_policy(requests=Requests(*batches), policy=Policy(), spans=SpanLog(tmp_path)))
    spans = read_spans(tmp_path)
    assert [span["kind"] for span in spans] == ["idle", "forward", "idle", "score", "idle"]
    forward, score = spans[1], spans[3]
    numbers = [one.number for one in asked]
    assert (forward["shards"], forward["numbers"], forward["size"]) == ([4, 6], numbers, 5)
    assert score["size"] == 11
    assert not {"shards", "numbers"} & set(score)  # nobody steps by their answers
