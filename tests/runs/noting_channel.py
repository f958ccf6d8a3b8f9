"""The request channel, with a note of every batch that a rank takes (`tests.runs.apart`).

A line is `took RANKS_NODE QUEUES_NODE IDLE`; IDLE is 1 if a rank of the queue's own node waited just then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from tests.runs.apart import note


class NotingQueues(SharedQueues):
    def open_to(self, rank: int, node: str, *, arrived_by: float = math.inf) -> Iterator[Any]:
        vars(self).setdefault("nodes", {})[rank] = node
        return super().open_to(rank, node, arrived_by=arrived_by)

    def taken(self, rank: int, queue: Any) -> None:
        for node, other in self._by_node.items():
            if other is queue:
                note("took", vars(self)["nodes"][rank], node, int(queue.bell.waited_for))
        super().taken(rank, queue)


class NotingChannel(RequestChannel):
    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        broker: RequestBroker = self._broker
        assert type(broker._queues) is SharedQueues
        broker._queues.__class__ = NotingQueues
