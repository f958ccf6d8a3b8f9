"""A request that waits for its answer, on the side that asks and on the side that answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlinf_async.core.failures import PeerError, RankLost
from rlinf_async.core.types import ActionRequest, RequestKey

NEXT_BATCH = "next batch"
"""The key of an inference rank's wait for a batch; keys of requests are numbers."""


class KeyedRequest(Protocol):
    """A request with a key."""

    @property
    def key(self) -> RequestKey: ...


@asynccontextmanager
async def answering(
    batch: Sequence[KeyedRequest],
    *,
    reply: Callable[[Sequence[RequestKey], Sequence[Any]], None],
    fail: Callable[[Sequence[RequestKey]], None],
) -> AsyncIterator[list[Any]]:
    """The block must fill the list with one answer per request of `batch`.

    At its end `fail` gets the keys of the requests answered by a `PeerError`, and `reply` the keys and
    answers of the others. If the block raises, or the number of answers is wrong, `fail` gets all keys.
    """
    keys = [pending.key for pending in batch]
    answers: list[Any] = []
    has_succeeded = False
    try:
        yield answers
        if len(answers) != len(keys):
            raise ValueError(f"{len(answers)} answers were given to {len(keys)} requests")
        pairs = list(zip(keys, answers, strict=True))
        if unanswered_keys := [key for key, answer in pairs if isinstance(answer, PeerError)]:
            fail(unanswered_keys)
        answer_pairs = [one for one in pairs if not isinstance(one[1], PeerError)]
        reply([key for key, _ in answer_pairs], [answer for _, answer in answer_pairs])
        has_succeeded = True
    finally:
        # Also when the block is cancelled: otherwise the askers would wait for ever.
        if not has_succeeded:
            fail(keys)


async def asked_until_answered(request: ActionRequest, ask: Callable[[ActionRequest], Awaitable[Any]]) -> Any:
    """Return the answer to `request`; repeat the request whenever the rank that has taken it is lost."""
    while True:
        try:
            return await ask(request)
        except RankLost:
            request = replace(request, again=True)


def settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    """Give `future` the answer, or the error that prevented it."""
    if future.done():
        return  # the asker has given up
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


@dataclass(frozen=True, kw_only=True)  # without slots: see `core.types`
class Pending:
    """A request that waits for its answer."""

    request: ActionRequest
    arrived: float = math.nan
    """Seconds, on the clock of the process of the broker."""

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def shard(self) -> int:
        return self.request.shard

    @property
    def size(self) -> int:
        return self.request.size

    @property
    def lap(self) -> tuple[int, int] | None:
        return self.request.lap
