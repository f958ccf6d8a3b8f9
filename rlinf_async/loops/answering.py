"""Answers to the requests of a batch: each asker gets its own answer, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from rlinf_async.core.failures import PeerError


class Numbered(Protocol):
    """A request under a number."""

    @property
    def number(self) -> int: ...


@asynccontextmanager
async def answering(
    batch: Sequence[Numbered],
    *,
    reply: Callable[[Sequence[int], Sequence[Any]], None],
    fail: Callable[[Sequence[int]], None],
) -> AsyncIterator[list[Any]]:
    """A block that fills the list with one answer per request of `batch`.

    Leaving it gives numbers and answers to `reply`, and to `fail` the numbers of those whose answer is a
    `PeerError`; if the block fails, or the answers are too few or too many, all of them.
    """
    numbers = [pending.number for pending in batch]
    answers: list[Any] = []
    succeeded = False
    try:
        yield answers
        if len(answers) != len(numbers):
            raise ValueError(f"{len(answers)} answers were given to {len(numbers)} requests")
        pairs = list(zip(numbers, answers, strict=True))
        if unanswered := [number for number, answer in pairs if isinstance(answer, PeerError)]:
            fail(unanswered)
        answered = [one for one in pairs if not isinstance(one[1], PeerError)]
        reply([number for number, _ in answered], [answer for _, answer in answered])
        succeeded = True
    finally:
        # Also when the block is cancelled: whoever has asked would wait for ever.
        if not succeeded:
            fail(numbers)


def settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    """Give `future` the answer, or the error that prevented it."""
    if future.done():
        return  # the asker has given up
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
