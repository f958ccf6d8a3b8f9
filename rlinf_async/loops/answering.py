"""Answers to the requests of a batch: each asker gets its own answer, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from rlinf_async.core.failures import PeerError, RankLost
from rlinf_async.core.types import ActionRequest, RequestKey


class Keyed(Protocol):
    """A request that has a name."""

    @property
    def key(self) -> RequestKey: ...


@asynccontextmanager
async def answering(
    batch: Sequence[Keyed],
    *,
    reply: Callable[[Sequence[RequestKey], Sequence[Any]], None],
    fail: Callable[[Sequence[RequestKey]], None],
) -> AsyncIterator[list[Any]]:
    """A block that fills the list with one answer per request of `batch`.

    Leaving it gives keys and answers to `reply`, and to `fail` the keys of those whose answer is a
    `PeerError`; if the block fails, or the answers are too few or too many, all of them.
    """
    keys = [pending.key for pending in batch]
    answers: list[Any] = []
    succeeded = False
    try:
        yield answers
        if len(answers) != len(keys):
            raise ValueError(f"{len(answers)} answers were given to {len(keys)} requests")
        pairs = list(zip(keys, answers, strict=True))
        if unanswered := [key for key, answer in pairs if isinstance(answer, PeerError)]:
            fail(unanswered)
        answered = [one for one in pairs if not isinstance(one[1], PeerError)]
        reply([key for key, _ in answered], [answer for _, answer in answered])
        succeeded = True
    finally:
        # Also when the block is cancelled: whoever has asked would wait for ever.
        if not succeeded:
            fail(keys)


async def asked_until_answered(request: ActionRequest, ask: Callable[[ActionRequest], Awaitable[Any]]) -> Any:
    """The answer to `request`, which is asked again as often as the rank that has taken it is lost."""
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
