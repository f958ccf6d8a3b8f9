"""Loops side by side, which end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from rlinf_async.core.failures import first_cause


async def together(loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run loops side by side; the first failure cancels the others, and is raised without a group."""
    async with first_failure() as group:
        for loop in loops:
            group.create_task(_to_its_end(loop))


async def _to_its_end(loop: Coroutine[Any, Any, None]) -> None:
    """Await `loop`, and raise an error if it ends as cancelled although this task was not cancelled."""
    task = asyncio.current_task()
    try:
        await loop
    # A stray `CancelledError` would end this task silently, and all tasks that wait for the work of `loop`
    # would wait for ever.
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(
            "a loop of the run has ended with a CancelledError, although its task was not cancelled"
        ) from error


@asynccontextmanager
async def first_failure() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first failure without an exception group; a failure ends all its tasks."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        cause = first_cause([errors])
        # The bare error and not the group: callers judge the end of a run by the type of one error.
        raise cause from cause.__cause__ or errors
