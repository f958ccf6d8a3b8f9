import asyncio
import pickle
import threading

import pytest

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.loops.policy_thread import PolicyThread
from rlinf_async.loops.watched_thread import DaemonThread
from rlinf_async.observe.ending import ending_of
from tests.hostile_errors import RAISED


@pytest.fixture
def executor():
    thread = DaemonThread("inference")
    yield thread
    thread.shutdown()


@pytest.fixture
def held():
    event = threading.Event()
    yield event
    event.set()


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
    assert what == SILENCE[by] + "0.09 s (most of async.advanced.deadline_s); it stands in forward, line " + (
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
