"""Action requests and pieces through gate, batcher and buffer, on one core and without I/O."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.core.buffer import TrajectoryBuffer
from rlinf_async.core.types import ActionRequest, Piece, Ticket

SHARD_COUNTS = (1, 8, 64, 512, 4096)
ROLLOUT_DECISIONS = 48
"""Action requests of one rollout of one shard."""
MAX_BATCH = 256
REQUEST_COUNT = 400_000
"""Approximate number of requests in one measurement."""


@dataclass
class Machinery:
    """The gate, batcher and buffer of a run."""

    shards: int

    def __post_init__(self) -> None:
        self.gate = AdmissionGate(shards=self.shards, epochs=1, max_staleness=1)
        self.batcher = DynamicBatcher[ActionRequest](max_size=MAX_BATCH)
        self.buffer = TrajectoryBuffer(pieces_per_rank=self.shards, max_staleness=1)

    def collect(self, batch: int) -> None:
        """Collect a batch: admit every shard, answer the requests of all shards in turn, and take their
        pieces.
        """
        tickets = [self._admit(shard) for shard in range(self.shards)]
        for _ in range(ROLLOUT_DECISIONS):
            self._decide()
        for ticket in tickets:
            refused = self.buffer.put(piece_of(ticket))
            assert refused is None, refused
        taken = self.buffer.take(batch, 0)
        assert len(taken) == self.shards

    def publish(self, version: int) -> None:
        self.buffer.finish(version - 1)
        self.gate.publish(version)
        self.buffer.ledger.check(self.buffer.held())

    def _admit(self, shard: int) -> Ticket:
        ticket = self.gate.admit(shard)
        assert ticket is not None
        return ticket

    def _decide(self) -> None:
        add, take = self.batcher.add, self.batcher.take
        for shard in range(self.shards):
            add(ActionRequest(shard=shard, number=shard, size=1, payload=None), 0.0)
        answered = 0
        while batch := take(0.0):
            answered += len(batch)
        assert answered == self.shards


def piece_of(ticket: Ticket) -> Piece:
    return Piece(
        ticket=ticket,
        part=0,
        rank=0,
        size=1,
        oldest=ticket.version,
        newest=ticket.version,
        env_steps=ROLLOUT_DECISIONS,
        payload=None,
    )


def requests_per_second(shards: int, requests: int = REQUEST_COUNT) -> float:
    """Return action requests per second of CPU time, including tickets, pieces and publications."""
    machinery = Machinery(shards)
    batches = max(1, requests // (shards * ROLLOUT_DECISIONS))
    began = time.process_time()
    for batch in range(batches):
        machinery.collect(batch)
        machinery.publish(batch + 1)
    return batches * shards * ROLLOUT_DECISIONS / (time.process_time() - began)


def measure(rounds: int, rate: Callable[[int], float] = requests_per_second) -> dict[str, Any]:
    """Return the median of `rate` over `rounds` rounds, for every number of shards; a round measures each
    once.
    """
    seen: dict[int, list[float]] = {shards: [] for shards in SHARD_COUNTS}
    for _ in range(rounds):
        for shards, results in seen.items():
            results.append(rate(shards))
    return {
        "requests_per_second": {str(n): round(statistics.median(results)) for n, results in seen.items()},
        "decisions_per_rollout": ROLLOUT_DECISIONS,
        "max_batch_size": MAX_BATCH,
        "rounds": rounds,
    }
