"""Calls of code that is not ours: environments and policies, which may raise anything, and may fork.

Theory of operation. An exception is control flow of the code that catches it. `SystemExit` and
`KeyboardInterrupt` end an event loop, `CancelledError` makes a task look as if it had been ended on purpose,
`StopIteration` cannot be given to a future, whose waiter then waits for ever; and any class may fail to be
packed, or to be printed. So nothing that others raise leaves the thread in which it was raised: `contained`
catches it there, at one place, and raises an error of ours instead, which is text.
"""

from __future__ import annotations

import concurrent.futures
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rlinf_async.core.failures import ForeignError, PolicyFailure, kind_of, words_of

T = TypeVar("T")


AsOurs = Callable[[BaseException], Exception]
"""Says as an error of ours what others have raised."""


def contained(function: Callable[[], T], as_ours: AsOurs = ForeignError.of) -> T:
    """Return the result of `function`; any error of it is raised as `as_ours` makes it.

    A process that it has forked does not come back: it is a copy of this one, and would go on with our work.
    """
    process, failure = os.getpid(), None
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 nothing may pass: see the top of this module
        failure = as_ours(error)
    if os.getpid() != process:
        os._exit(0 if failure is None else 1)
    if failure is not None:
        raise failure  # out here it has no context, whose frames would keep all that they refer to
    return result


def let_go(close: Callable[[], object]) -> None:
    """Close what has failed: nothing is known of it, so that closing it may fail, too."""
    with suppress(ForeignError):
        contained(close)


def harmless(error: BaseException) -> Exception:
    """Return an error as it is if it is safe for all who catch it, or in words: see the top of this
    module.
    """
    orders = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)
    if isinstance(error, Exception) and not isinstance(error, orders) and _can_travel(error):
        return error
    return ForeignError.of(error)


def _can_travel(error: Exception) -> bool:
    """Return True if it can be shown, as asyncio does that in passing, and packed for another process."""
    try:
        repr(error), str(error)
        pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 it is code of others
        return False
    return True


def blaming_the_policy(who: str, *, built: str | None = None) -> AsOurs:
    """Says of what a policy raises that the policy of `who`, as `inference rank 0`, has failed.

    `built`: it is being built, and the config calls it so.
    """
    what = "the policy has failed on" if built is None else f"the policy {built} cannot be built on"

    def failed(error: BaseException) -> PolicyFailure:
        if isinstance(error, PolicyFailure):
            return error
        failure = PolicyFailure(f"{what} {who}: {words_of(error)}", kind=kind_of(error))
        failure.__cause__ = ForeignError.of(error)
        return failure

    return failed
