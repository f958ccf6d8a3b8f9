"""The inference loops, one of each per rank, and the thread in which a policy answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import TypeVar

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.loops.foreign import WatchedThread, blaming_the_policy, ends
from rlinf_async.loops.ports import LoadablePolicy, Policy, RequestPort, WeightPort
from rlinf_async.observe.spans import UNRECORDED, SpanLog


async def serve_policy(*, requests: RequestPort, policy: Policy, spans: SpanLog = UNRECORDED) -> None:
    """Answer batches of requests until no shard will ask any more.

    Leaves the spans `idle`, a wait for requests, and `forward`, which names the requests for actions that are
    answered by `shards` and `numbers`, or `score`.
    """
    while True:
        with spans.span("idle"):
            batch = await requests.take()
        if batch is None:
            return
        size = sum(pending.size for pending in batch)
        # The first stands for all: scores have a queue of their own, so that no batch has both.
        if batch[0].request.mode == "score":
            span = spans.span("score", size=size)
        else:
            shards = [pending.shard for pending in batch]
            numbers = [pending.request.number for pending in batch]
            span = spans.span("forward", shards=shards, numbers=numbers, size=size)
        # Around the pass: a batch that was taken is answered or failed, also if this task is cancelled.
        async with requests.answering(batch) as answers:
            with span:
                answers.extend(await policy.act(batch))


async def refresh_weights(
    *, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED
) -> None:
    """Give the policy the newest weights, again and again, until there will be no more; see `load_next`."""
    while await load_next(weights=weights, policy=policy, spans=spans):
        pass


async def load_next(*, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED) -> bool:
    """Wait for newer weights and give them to the policy; False if there will be no more.

    Leaves the span `load`: from the moment that new weights are there until the policy acts by them.
    """
    next_weights = await weights.next()
    if next_weights is None:
        return False
    version, data = next_weights
    with spans.span("load", version=version):
        await policy.load(version, data)
    # Only when the policy acts by it: what is applied opens the gate, and the bound on staleness rests on
    # that.
    await weights.applied(version)
    return True


T = TypeVar("T")

DEADLINE_SHARE = 0.9
"""Share of `async.advanced.deadline_s` that a policy may take: the asker that waits for it would else
be the first to report, without knowing the cause."""


class PolicyThread:
    """Calls the policy of `who`, as `inference rank 0`; whatever fails there is a `PolicyFailure`.

    Its silence is one, too. The thread is left to itself then: nothing can end what hangs in it.
    """

    def __init__(self, place: str, executor: Executor, *, deadline_s: float = math.inf) -> None:
        # An infinite deadline is cut to what the waits of threads accept.
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
        """Return the policy that `function` builds, which the config calls `name`. The caller is blocked
        meanwhile.
        """
        thread = WatchedThread(self._executor, blaming_the_policy(self._place, built=name))
        future = thread.submit(function)
        if not wait([future], self._limit_s).done:
            raise self._silent(f"the policy {name} has not been built on {self._place}", thread)
        return future.result()

    def _silent(self, complaint: str, thread: WatchedThread) -> PolicyFailure:
        limit = f"for {self._limit_s:g} s (most of async.advanced.deadline_s)"
        return PolicyFailure(f"{complaint} {limit}; it stands {thread.stands()}")
