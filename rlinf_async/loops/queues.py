"""Rules for queues of requests: the queues that a rank may take from, their order, and the rank to wake.

Theory of operation. A request is added to the queue of its shard. A rank looks at the queues that are open to
it, in their order, and takes the first batch that a batcher returns. Level 2 is a choice of queues and
batchers only:

    level 2 on    `SharedQueues`: one queue per node, open to all ranks, own node first; a batch leaves as
                  soon as a rank is idle. One more queue has the requests of learner ranks for scores; a rank
                  serves it in turn with the others
    level 2 off   `loops.barrier`: one queue per rank and pipeline stage, open to that rank alone; a batch is
                  every shard that is in flight

A new request wakes one rank that may take it, and a rank that takes a batch and leaves requests wakes the
next rank: so every request has woken a rank. A woken rank that finds no request sleeps again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.waiting import Bell

B = TypeVar("B")


@dataclass(frozen=True, kw_only=True, eq=False)
class Queue(Generic[B]):
    """A batcher, and the bell of the ranks that take from it first."""

    batcher: B
    bell: Bell


class Queues(Protocol):
    """All queues of a run."""

    @property
    def deadline_s(self) -> float:
        """Most seconds that a request may wait for its answer, and a rank for a request."""

    def __iter__(self) -> Iterator[Queue[Any]]: ...

    def of(self, request: ActionRequest) -> Queue[Any]:
        """The queue of a request."""

    def bell(self, rank: int, node: str) -> Bell:
        """The bell of inference rank `rank`, which runs on `node`."""

    def open_to(self, rank: int, node: str, *, arrived_by: float = math.inf) -> Iterable[Queue[Any]]:
        """The queues that inference rank `rank`, on `node`, may take from now, in this order.

        `arrived_by`: leave out shared queues without a request that had arrived by then.
        """

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        """Note that inference rank `rank` has taken a batch out of `queue`."""

    def wake(self, queue: Queue[Any]) -> None:
        """Wake a waiting rank that may take from `queue`."""

    def begin(self, shard: int) -> None:
        """Note that `shard` starts a rollout, and will ask for actions."""

    def end(self, shard: int) -> None:
        """Note that `shard` has ended its rollout, so that no batch waits for its requests."""

    def ring(self) -> None:
        """Wake all waiting ranks."""


class SharedQueues:
    """Level 2 on: any rank answers any shard, those of its own node first.

    There is one queue per node. A rank takes from another node's queue only while no rank of that node is
    idle, so that observations cross the network only if a request would otherwise wait (D-VLA replicates its
    topology per node, section 3; here an idle rank may take any request).
    """

    def __init__(self, *, max_size: int, max_wait: float = 0.0, deadline_s: float) -> None:
        """See `DynamicBatcher`."""
        self.deadline_s = deadline_s
        self._max_size, self._max_wait = max_size, max_wait
        self._by_node: dict[str, Queue[DynamicBatcher[Any]]] = {}
        self._scores: list[Queue[DynamicBatcher[Any]]] = []
        """The queue of requests for scores, [] until a learner rank asks. While both wait, an inference rank
        serves scores and actions in turn: no request for actions waits for more than one batch of scores, and
        the many requests for actions leave time for scores."""
        self._scores_next: set[int] = set()
        """Ranks that have answered a batch of actions last: scores are next."""

    def __iter__(self) -> Iterator[Queue[DynamicBatcher[Any]]]:
        # A copy: a request from a new node may add a queue during an iteration.
        return iter([*self._by_node.values(), *self._scores])

    def of(self, request: ActionRequest) -> Queue[DynamicBatcher[Any]]:
        if request.mode != "score":
            return self._at(request.node)
        if not self._scores:
            self._scores.append(self._queue())
        return self._scores[0]

    def bell(self, rank: int, node: str) -> Bell:
        return self._at(node).bell

    def open_to(
        self, rank: int, node: str, *, arrived_by: float = math.inf
    ) -> Iterator[Queue[DynamicBatcher[Any]]]:
        return (queue for queue in self._in_order(rank, node) if not _is_younger(queue, arrived_by))

    def _in_order(self, rank: int, node: str) -> Iterator[Queue[DynamicBatcher[Any]]]:
        own, scores = self._at(node), self._scores if rank in self._scores_next else []
        yield from scores
        yield own
        rest = (queue for queue in self if queue is not own and queue not in scores)
        # A waiting rank of the other node takes that node's requests itself.
        yield from (queue for queue in rest if not queue.bell.waited_for)

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        if queue in self._scores:
            self._scores_next.discard(rank)
        else:
            self._scores_next.add(rank)

    def wake(self, queue: Queue[Any]) -> None:
        # One rank only: if it leaves requests, it wakes the next.
        if queue.bell.waited_for:
            return queue.bell.ring(1)
        for other in self._by_node.values():  # no rank waits at the bell of scores
            if other.bell.waited_for:
                return other.bell.ring(1)

    def begin(self, shard: int) -> None:
        """Do nothing: with level 2 on, no batch waits for a shard because it is in flight."""

    def end(self, shard: int) -> None:
        """Do nothing: with level 2 on, no batch has waited for the shard because it was in flight."""

    def ring(self) -> None:
        for queue in self:
            queue.bell.ring()

    def _at(self, node: str) -> Queue[DynamicBatcher[Any]]:
        if node not in self._by_node:
            self._by_node[node] = self._queue()
        return self._by_node[node]

    def _queue(self) -> Queue[DynamicBatcher[Any]]:
        # A bell of its own, so that `waited_for` tells whether a rank of this node is idle.
        batcher: DynamicBatcher[Any] = DynamicBatcher(max_size=self._max_size, max_wait=self._max_wait)
        return Queue(batcher=batcher, bell=Bell(deadline_s=self.deadline_s))


def _is_younger(queue: Queue[DynamicBatcher[Any]], time: float) -> bool:
    return queue.batcher.oldest is not None and queue.batcher.oldest > time
