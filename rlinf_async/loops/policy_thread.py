"""The thread in which a policy answers, and how long it may be silent."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import TypeVar

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.loops.foreign import blaming_the_policy
from rlinf_async.loops.watched_thread import WatchedThread, ends

T = TypeVar("T")

DEADLINE_SHARE = 0.9
"""Share of `async.advanced.deadline_s` that a policy may take: the asker that waits for it would else
be the first to report, without knowing the cause."""


class PolicyThread:
    """Calls the policy of `who`, as `inference rank 0`; whatever fails there is a `PolicyFailure`.

    Its silence is one, too. The thread is left to itself then: nothing can end what hangs in it.
    """

    def __init__(self, who: str, executor: Executor, *, deadline_s: float = math.inf) -> None:
        self._who, self._limit_s = who, min(DEADLINE_SHARE * deadline_s, threading.TIMEOUT_MAX)
        self._executor = executor
        self._thread = WatchedThread(executor, blaming_the_policy(who))

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of `function`: a forward pass, or a change of the policy."""
        future = self._thread.start(function)
        if not await ends(future, self._limit_s):
            raise self._silent(f"the policy has not answered on {self._who}", self._thread)
        return future.result()

    def build(self, function: Callable[[], T], name: str) -> T:
        """Return the policy that `function` builds, which the config calls `name`. The caller is blocked
        meanwhile.
        """
        thread = WatchedThread(self._executor, blaming_the_policy(self._who, built=name))
        future = thread.submit(function)
        if not wait([future], self._limit_s).done:
            raise self._silent(f"the policy {name} has not been built on {self._who}", thread)
        return future.result()

    def _silent(self, what: str, thread: WatchedThread) -> PolicyFailure:
        limit = f"for {self._limit_s:g} s (most of async.advanced.deadline_s)"
        return PolicyFailure(f"{what} {limit}; it stands {thread.stands()}")
