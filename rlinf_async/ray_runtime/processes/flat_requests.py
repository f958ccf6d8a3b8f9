"""Action requests as they travel between processes: flat tuples.

pickle writes and reads a tuple of numbers and texts several times as fast as a record, whose class it looks
up by name, and whose field names it writes as well. The request channel reads only what its queues need. The
rest is bytes to it, the body: the asker's address, and the payload.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.requests import Pending
from rlinf_async.wire.connection import Address

FIELDS = ("shard", "number", "size", "mode", "node", "generation", "again", "lap", "asked", "payload")
_values = attrgetter(*FIELDS)

Flat = tuple[Any, ...]
"""The values of `FIELDS`; the last is the body."""


def packed(asker: Address, payload: bytes | list[Any]) -> bytes:
    """Return the body of a request."""
    return pickle.dumps((asker, payload), protocol=5)


def flattened(request: ActionRequest, *, node: str, generation: int, asked: float, body: bytes) -> Flat:
    """Return `request` as its asker sends it."""
    own = (request.shard, request.number, request.size, request.mode)
    return (*own, node, generation, request.again, request.lap, asked, body)


def restored(flat: Flat) -> ActionRequest:
    """Return the request as the channel keeps it: its payload is the body."""
    request = object.__new__(ActionRequest)
    # Past the constructor, which sets each field of a frozen dataclass by a call.
    request.__dict__.update(zip(FIELDS, flat, strict=True))
    return request


def handed_out(batch: Iterable[Pending]) -> list[tuple[float, Flat]]:
    """Return requests as the channel sends them to an inference rank."""
    return [(pending.arrived, _values(pending.request)) for pending in batch]


def opened(batch: Iterable[tuple[float, Flat]]) -> list[Pending]:
    """Return the requests of a batch, with their payloads and askers."""
    requests = []
    for arrived, flat in batch:
        request = restored(flat)
        asker, payload = pickle.loads(request.payload)
        request.__dict__.update(asker=asker, payload=payload)
        requests.append(Pending(request=request, arrived=arrived))
    return requests
