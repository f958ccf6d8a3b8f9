import pickle
import sys

import pytest

from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.loops.requests import Pending

TICKET = Ticket(shard=3, batch=1, epoch=0, place=3, version=1)
REQUEST = ActionRequest(
    shard=3, number=7, size=2, payload=b"seen", asker=("a socket", b"a token"), lap=(1, 0), asked=0.25
)
RECORDS = (
    TICKET,
    Piece(ticket=TICKET, part=0, rank=0, size=2, oldest=1, newest=1, env_steps=8, payload=None),
    REQUEST,
    Pending(request=REQUEST, arrived=0.5),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_pickled_and_read_without_python_code(record):
    """Of frozen dataclasses with slots, Python code writes and reads each field."""
    pickle.dumps(record)  # at the first one of a class Python looks for slots
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        again = pickle.loads(pickle.dumps(record, protocol=5))
    finally:
        sys.setprofile(None)
    assert calls == []
    assert again == record
