"""Action requests as they travel, from the asker by the channel to the inference rank."""

import pickle
from dataclasses import replace

import pytest

from rlinf_async.loops.requests import Pending
from rlinf_async.ray_runtime.processes.flat_requests import flattened, handed_out, opened, packed, restored
from tests.making import request

ASKER = ("a socket", b"a token")
SENT_AS = {"node": "a", "generation": 2, "asked": 0.25}


def travelled(message):
    return pickle.loads(pickle.dumps(message, protocol=5))


@pytest.mark.parametrize("payload", [b"seen", [[3, 4], "a place"]])
@pytest.mark.parametrize("changes", [{}, {"again": True}, {"lap": (1, 0), "mode": "eval"}])
def test_a_rank_is_given_the_request_that_was_asked(payload, changes):
    asked = replace(request(3, 2), **changes)
    flat = travelled(flattened(asked, **SENT_AS, body=packed(ASKER, payload)))
    (pending,) = opened(travelled(handed_out([Pending(request=restored(flat), arrived=0.5)])))
    assert pending == Pending(request=replace(asked, payload=payload, asker=ASKER, **SENT_AS), arrived=0.5)


def test_the_channel_opens_no_body():
    flat = flattened(request(3, 2), **SENT_AS, body=b"no pickle")
    (kept,) = handed_out([Pending(request=restored(flat), arrived=0.5)])
    assert kept == (0.5, flat)


def test_no_class_is_looked_up_to_read_a_request():
    flat = flattened(request(3, 2, lap=(1, 0)), **SENT_AS, body=packed(ASKER, b"seen"))
    assert b"rlinf_async" not in pickle.dumps(flat, protocol=5)
