"""The inference loops of a rank (answers, and new weights), and the thread of its policy."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import TYPE_CHECKING, TypeVar

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.loops.foreign import WatchedThread, blaming_the_policy, ends
from rlinf_async.observe.spans import UNRECORDED, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import LoadablePolicy, Policy, RequestPort, WeightPort


async def serve_policy(*, requests: RequestPort, policy: Policy, spans: SpanLog = UNRECORDED) -> None:
    """Answer batches of requests until no more requests will come.

    Records the spans `idle`, a wait for requests, and `forward` (with the `shards` and `numbers` of the
    requests for actions that it answers) or `score`.
    """
    while True:
        with spans.span("idle"):
            batch = await requests.take()
        if batch is None:
            return
        size = sum(pending.size for pending in batch)
        # The first request has the mode of all: requests for scores have their own queue.
        if batch[0].request.mode == "score":
            span = spans.span("score", size=size)
        else:
            shards = [pending.shard for pending in batch]
            numbers = [pending.request.number for pending in batch]
            span = spans.span("forward", shards=shards, numbers=numbers, size=size)
        # Around the pass, so that a taken batch is answered or failed even if this task is cancelled.
        async with requests.answering(batch) as answers:
            with span:
                answers.extend(await policy.act(batch))


async def refresh_weights(
    *, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED
) -> None:
    """Load new weights until no more will come; see `load_next`."""
    while await load_next(weights=weights, policy=policy, spans=spans):
        pass


async def load_next(*, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED) -> bool:
    """Wait for newer weights and load them into the policy; return False if no more will come.

    Records the span `load`: from the arrival of new weights until the policy acts with them.
    """
    next_weights = await weights.next()
    if next_weights is None:
        return False
    version, data = next_weights
    with spans.span("load", version=version):
        await policy.load(version, data)
    # After the load: an applied version opens the gate, and the bound on staleness relies on it.
    await weights.applied(version)
    return True


T = TypeVar("T")

DEADLINE_SHARE = 0.9
"""The share of `async.advanced.deadline_s` that a policy may take. With the whole deadline, the env worker
that waits would fail first, and report no cause."""


class PolicyThread:
    """Calls the policy in a thread; every error of the policy becomes a `PolicyFailure`.

    So does a call that exceeds the deadline. Its thread is then abandoned, as a thread cannot be killed.
    """

    def __init__(self, place: str, executor: Executor, *, deadline_s: float = math.inf) -> None:
        """`place` names the process in messages, such as `inference rank 0`."""
        # An infinite deadline is cut to the longest timeout that waits for threads accept.
        self._place, self._limit_s = place, min(DEADLINE_SHARE * deadline_s, threading.TIMEOUT_MAX)
        self._executor = executor
        self._thread = WatchedThread(executor, blaming_the_policy(place))

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of `function`: a forward pass, or a change of the policy."""
        future = self._thread.start(function)
        if not await ends(future, self._limit_s):
            raise self._silent(f"the policy has not answered on {self._place}", self._thread)
        return future.result()

    def build(self, function: Callable[[], T], name: str) -> T:
        """Return the policy that `function` builds; `name` is its name in the config. Blocks the caller."""
        thread = WatchedThread(self._executor, blaming_the_policy(self._place, built=name))
        future = thread.submit(function)
        if not wait([future], self._limit_s).done:
            raise self._silent(f"the policy {name} has not been built on {self._place}", thread)
        return future.result()

    def _silent(self, complaint: str, thread: WatchedThread) -> PolicyFailure:
        limit = f"for {self._limit_s:g} s (most of async.advanced.deadline_s)"
        return PolicyFailure(f"{complaint} {limit}; its thread is {thread.stands()}")
