import asyncio
import pickle
import threading
from contextlib import asynccontextmanager

import pytest

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.loops.foreign import DaemonThread
from rlinf_async.loops.inference import PolicyThread, serve_policy
from rlinf_async.loops.requests import Pending
from rlinf_async.observe.ending import ending_of
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.spans import SpanLog
from tests.hostile_errors import RAISED
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


@pytest.fixture
def executor():
    thread = DaemonThread("inference")
    yield thread
    thread.shutdown()


def called(policy, function):
    return asyncio.run(policy.call(function))


def built(policy, function):
    return policy.build(function, "openpi")


BY = {
    called: "the policy has failed on inference rank 2: ",
    built: "the policy openpi cannot be built on inference rank 2: ",
}
SILENCE = {
    called: "the policy has not answered on inference rank 2 for ",
    built: "the policy openpi has not been built on inference rank 2 for ",
}


@pytest.mark.parametrize("by", BY)
def test_what_it_gives_is_made_in_its_thread(executor, by):
    policy = PolicyThread("inference rank 2", executor)
    assert by(policy, lambda: threading.current_thread().name) == "inference"


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("by", BY)
def test_whatever_it_raises_names_it_the_rank_and_the_cause(executor, by, raised):
    with pytest.raises(PolicyFailure) as failed:
        by(PolicyThread("inference rank 2", executor), raised.fail)
    assert str(failed.value).startswith(BY[by] + raised.kind)
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


def forward(event):
    event.wait()


@pytest.mark.parametrize("by", BY)
def test_silence_names_it_the_rank_the_seconds_and_where_it_stands(executor, held, by):
    policy = PolicyThread("inference rank 2", executor, deadline_s=0.1)
    with pytest.raises(PolicyFailure) as failed:
        by(policy, lambda: forward(held))
    what, *stack = str(failed.value).splitlines()
    assert what == SILENCE[
        by
    ] + "0.09 s (most of async.advanced.deadline_s); its thread is in forward, line " + (
        f"{forward.__code__.co_firstlineno + 1} of {__file__}"
    )
    assert any(line.endswith("in forward") for line in stack)
    assert ending_of(failed.value).why.endswith(what)


@pytest.mark.parametrize("by", BY)
def test_want_of_memory_is_known_wherever_it_is_told(executor, by):
    def too_much():
        raise MemoryError("cannot allocate 7 GB")

    with pytest.raises(PolicyFailure) as failed:
        by(PolicyThread("inference rank 2", executor), too_much)
    ending = ending_of(pickle.loads(pickle.dumps(failed.value)))
    assert ending.why == f"has no memory left: {failed.value}"
    assert "fewer environments or smaller batches" in ending.what_next
