"""Keys of the `async` block that mean nothing where all loops are in one process."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.reasons import Reason

UNSERVED_KEYS = {
    "advanced.stall_s": "nobody outside of the process watches it",
    "survive.process_restarts": "there is one process, and the run ends with it",
    "advanced.silent_s": "there is one process, and nobody asks it for an answer",
    "advanced.keep_checkpoints": "the policy is saved once, after the last step",
}


def unserved(asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Every key that asks for what there is not here. None is refused that says what is done anyway."""
    usual = AsyncConfig()
    for key, why in UNSERVED_KEYS.items():
        value = attrgetter(key)(asynchrony)
        if value not in (attrgetter(key)(usual), 0):
            yield Reason(
                f"async.{key}={value!r} is not served by the local host: {why}; leave it out",
                f"~async.{key}",
            )
