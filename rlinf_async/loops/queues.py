"""Rules for queues of requests: which a rank may take from, where it looks first, and who is woken.

Theory of operation. A request is added to the queue of its shard; a rank takes a batch from the first of the
queues that are open to it whose batcher gives one. Level 2 is a choice of queues and of batchers, and of
nothing else:

    level 2 on    `SharedQueues`: one queue per node, open to all ranks, own node first; a batch leaves as
                  soon as a rank is idle; and one for what learner ranks ask, by turns with the others
    level 2 off   `BarrierQueues`: one queue per rank and pipeline stage, open to that rank alone; a batch is
                  every shard that is in flight

An asker that adds a request wakes one rank that may take it, and a rank that takes a batch and leaves
requests wakes the next: so each request has woken a rank, and a woken rank that finds none sleeps again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlinf_async.core.batching import BarrierBatcher, DynamicBatcher
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.waiting import Bell

B = TypeVar("B", DynamicBatcher[Any], BarrierBatcher[Any])


@dataclass(frozen=True, kw_only=True, eq=False)
class Queue(Generic[B]):
    """A batcher, and the bell of the ranks that look into it first."""

    batcher: B
    bell: Bell


class Queues(Protocol):
    """All queues of a run."""

    @property
    def deadline_s(self) -> float:
        """Seconds in which a request is to be answered, and in which a rank that waits is to get one."""

    def __iter__(self) -> Iterator[Queue[Any]]: ...

    def of(self, request: ActionRequest) -> Queue[Any]:
        """The queue in which a request waits."""

    def bell(self, rank: int, node: str) -> Bell:
        """The bell that inference rank `rank`, which runs on `node`, waits for."""

    def open_to(self, rank: int, node: str) -> Iterable[Queue[Any]]:
        """The queues from which inference rank `rank`, on `node`, may take now, in this order."""

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        """Note that inference rank `rank` has taken a batch out of `queue`."""

    def wake(self, queue: Queue[Any]) -> None:
        """Tell a rank that waits, and that may take from `queue`, to look."""

    def begin(self, shard: int) -> None:
        """Note that `shard` starts a rollout, and will ask for actions."""

    def end(self, shard: int) -> None:
        """Note that `shard` has ended its rollout, so that nothing waits for its requests."""

    def ring(self) -> None:
        """Tell every rank that waits to look again."""


class SharedQueues:
    """Level 2 on: any rank answers any shard, those of its own node first.

    There is one queue per node. A rank takes from another node's queue while none of that node's own ranks
    is idle, so that observations cross the network only where somebody would have to wait otherwise
    (D-VLA replicates its topology per node, section 3; here nothing is kept from an idle rank).
    """

    def __init__(self, *, max_size: int, max_wait: float = 0.0, deadline_s: float) -> None:
        """See `DynamicBatcher`."""
        self.deadline_s = deadline_s
        self._max_size, self._max_wait = max_size, max_wait
        self._by_node: dict[str, Queue[DynamicBatcher[Any]]] = {}
        self._scores: list[Queue[DynamicBatcher[Any]]] = []
        """The queue of learner ranks, if they ask. A rank serves it and env shards by turns, while both
        wait: no request for actions waits for more than one of scores, and the many requests for actions
        leave time for scores."""
        self._scores_next: set[int] = set()
        """Ranks whose last batch was one of actions."""

    def __iter__(self) -> Iterator[Queue[DynamicBatcher[Any]]]:
        # A copy: a request from a new node adds a queue, perhaps while somebody goes through them.
        return iter([*self._by_node.values(), *self._scores])

    def of(self, request: ActionRequest) -> Queue[DynamicBatcher[Any]]:
        if request.mode != "score":
            return self._at(request.node)
        if not self._scores:
            self._scores.append(self._queue())
        return self._scores[0]

    def bell(self, rank: int, node: str) -> Bell:
        return self._at(node).bell

    def open_to(self, rank: int, node: str) -> Iterator[Queue[DynamicBatcher[Any]]]:
        own, scores = self._at(node), self._scores if rank in self._scores_next else []
        yield from scores
        yield own
        rest = (queue for queue in self if queue is not own and queue not in scores)
        # While one of the other node's own ranks waits, it takes these requests itself.
        yield from (queue for queue in rest if not queue.bell.waited_for)

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        if queue in self._scores:
            self._scores_next.discard(rank)
        else:
            self._scores_next.add(rank)

    def wake(self, queue: Queue[Any]) -> None:
        # One rank only: a woken rank that leaves requests wakes the next.
        for bell in (queue.bell, *(other.bell for other in self)):
            if bell.waited_for:
                return bell.ring(1)

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
        # A bell of its own, as `waited_for` tells whether a rank of just this node is idle.
        batcher: DynamicBatcher[Any] = DynamicBatcher(max_size=self._max_size, max_wait=self._max_wait)
        return Queue(batcher=batcher, bell=Bell(deadline_s=self.deadline_s))


class BarrierQueues:
    """Level 2 off: every shard has its rank, and a rank waits for all its shards in flight.

    There is one queue per inference rank and pipeline stage. Evaluation shards are numbered on from the
    training shards and use the same queues. `in_step` makes the batches of a rank the same in every run:
    one queue, and always all shards of it.
    """

    def __init__(self, plan: ShardPlan, *, deadline_s: float, in_step: bool = False) -> None:
        self.deadline_s = deadline_s
        self._keys = [plan.queue(shard)[:1] if in_step else plan.queue(shard) for shard in range(plan.shards)]
        asked = {key[0] for key in self._keys}
        # One bell per rank, which all queues of the rank share: it waits for any of them. A rank that no
        # shard asks waits for the end of the run.
        self._bells = [
            Bell(deadline_s=deadline_s if rank in asked else math.inf) for rank in range(plan.inference_ranks)
        ]
        self._queues = {
            key: Queue(batcher=self._barrier(key, in_step), bell=self._bells[key[0]])
            for key in sorted(set(self._keys))
        }

    def __iter__(self) -> Iterator[Queue[BarrierBatcher[Any]]]:
        return iter(self._queues.values())

    def of(self, request: ActionRequest) -> Queue[BarrierBatcher[Any]]:
        return self._at(request.shard)

    def bell(self, rank: int, node: str) -> Bell:
        return self._bells[rank]

    def open_to(self, rank: int, node: str) -> Iterator[Queue[BarrierBatcher[Any]]]:
        return (queue for key, queue in self._queues.items() if key[0] == rank)

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        """Do nothing: a rank has what it has taken from one queue at a time."""

    def wake(self, queue: Queue[Any]) -> None:
        queue.bell.ring(1)

    def begin(self, shard: int) -> None:
        self._at(shard).batcher.begin(shard)

    def end(self, shard: int) -> None:
        """Note that `shard` has ended its rollout, and wake ranks whose batch waited for its request."""
        self._at(shard).batcher.end(shard)
        self.wake(self._at(shard))

    def ring(self) -> None:
        for bell in self._bells:
            bell.ring()

    def _at(self, shard: int) -> Queue[BarrierBatcher[Any]]:
        # Evaluation shards are numbered on from the training shards.
        return self._queues[self._keys[shard % len(self._keys)]]

    def _barrier(self, key: tuple[int, ...], in_step: bool) -> BarrierBatcher[Any]:
        members = frozenset(shard for shard, other in enumerate(self._keys) if other == key)
        return BarrierBatcher(expected=members if in_step else frozenset())
