"""The queues of requests with level 2 off; see `loops.queues`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rlinf_async.core.barrier import BarrierBatcher
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.queues import Queue
from rlinf_async.loops.waiting import Bell


class BarrierQueues:
    """Level 2 off: every shard has its rank, and a rank waits for all its shards in flight.

    There is one queue per inference rank and pipeline stage. Evaluation shards, numbered after the training
    shards, use the same queues. `in_step` makes the batches of a rank the same in every run: one queue per
    rank, and all of its shards in every batch.
    """

    def __init__(self, plan: ShardPlan, *, deadline_s: float, in_step: bool = False) -> None:
        self.deadline_s = deadline_s
        self._keys = [plan.queue(shard)[:1] if in_step else plan.queue(shard) for shard in range(plan.shards)]
        asked = {key[0] for key in self._keys}
        # All queues of a rank share one bell, as the rank waits for any of them. A rank without shards waits
        # for the end of the run, without a deadline.
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

    def open_to(
        self, rank: int, node: str, *, arrived_by: float = math.inf
    ) -> Iterator[Queue[BarrierBatcher[Any]]]:
        return (queue for key, queue in self._queues.items() if key[0] == rank)

    def taken(self, rank: int, queue: Queue[Any]) -> None:
        """Do nothing: the order of the queues of a rank does not depend on its last batch."""

    def wake(self, queue: Queue[Any]) -> None:
        queue.bell.ring(1)

    def begin(self, shard: int) -> None:
        self._at(shard).batcher.begin(shard)

    def end(self, shard: int) -> None:
        """Note that `shard` has ended its rollout, and wake the rank of its queue: the batch may be
        complete."""
        self._at(shard).batcher.end(shard)
        self.wake(self._at(shard))

    def ring(self) -> None:
        for bell in self._bells:
            bell.ring()

    def _at(self, shard: int) -> Queue[BarrierBatcher[Any]]:
        # Evaluation shards are numbered after the training shards.
        return self._queues[self._keys[shard % len(self._keys)]]

    def _barrier(self, key: tuple[int, ...], in_step: bool) -> BarrierBatcher[Any]:
        members = frozenset(shard for shard, other in enumerate(self._keys) if other == key)
        return BarrierBatcher(expected=members if in_step else frozenset())
