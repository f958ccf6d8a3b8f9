"""Action requests and pieces through gate, batcher and buffer, on one core and without I/O."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.core.buffer import TrajectoryBuffer
from rlinf_async.core.types import ActionRequest, Piece, Ticket

SHARD_COUNTS = (1, 8, 64, 512, 4096)
BALANCES = {"exact": False, "tasks": True}
"""The rules of `balance`: whether a free shard collects for any place of a batch."""
ROLLOUT_DECISIONS = 48
"""Action requests of one rollout of one shard."""
MAX_BATCH = 256
REQUEST_COUNT = 400_000
"""Approximate number of requests in one measurement."""
ROLLOUT_COUNT = 8_192
"""Approximate number of rollouts in one measurement of rollouts without requests."""


@dataclass
class Machinery:
    """The gate, batcher and buffer of a run; with `tasks` any shard collects for any place."""

    shards: int
    decisions: int
    tasks: bool

    def __post_init__(self) -> None:
        self.gate = AdmissionGate(shards=self.shards, epochs=1, max_staleness=1, any_place=self.tasks)
        self.batcher = DynamicBatcher[ActionRequest](max_size=MAX_BATCH)
        self.buffer = TrajectoryBuffer(pieces_per_rank=self.shards, max_staleness=1)

    def collect(self, batch: int) -> None:
        """Collect a batch: admit every shard, answer the requests of all shards in turn, and take their
        pieces.
        """
        tickets = [self._admit(shard) for shard in range(self.shards)]
        for _ in range(self.decisions):
            self._decide()
        for number, ticket in enumerate(tickets):
            self.gate.record_duration(ticket, seconds_of(number))
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


def seconds_of(number: int) -> float:
    """Seconds of a rollout, which differ from those of the rollouts before and after it."""
    return 1 + number * 7919 % 1009 / 1009


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


def cpu_seconds(shards: int, *, batches: int, decisions: int, tasks: bool) -> float:
    """Return the CPU time of `batches` batches, including tickets, pieces and publications."""
    machinery = Machinery(shards, decisions, tasks)
    began = time.process_time()
    for batch in range(batches):
        machinery.collect(batch)
        machinery.publish(batch + 1)
    return time.process_time() - began


class CpuSeconds(Protocol):
    def __call__(self, shards: int, *, batches: int, decisions: int, tasks: bool) -> float: ...


def requests_per_second(
    cpu_seconds: CpuSeconds, shards: int, *, tasks: bool, requests: int = REQUEST_COUNT
) -> float:
    """Return action requests per second of CPU time."""
    batches = max(1, requests // (shards * ROLLOUT_DECISIONS))
    spent = cpu_seconds(shards, batches=batches, decisions=ROLLOUT_DECISIONS, tasks=tasks)
    return batches * shards * ROLLOUT_DECISIONS / spent


def us_per_rollout(
    cpu_seconds: CpuSeconds, shards: int, *, tasks: bool, rollouts: int = ROLLOUT_COUNT
) -> float:
    """Return microseconds of CPU time of a rollout without action requests."""
    batches = max(1, rollouts // shards)
    return 1e6 * cpu_seconds(shards, batches=batches, decisions=0, tasks=tasks) / (batches * shards)


def measure(
    rounds: int,
    cpu_seconds: CpuSeconds = cpu_seconds,
    requests: int = REQUEST_COUNT,
    *,
    most_shards: int = SHARD_COUNTS[-1],
) -> dict[str, Any]:
    """Return medians over `rounds` rounds, for every number of shards up to `most_shards`; a round measures
    each once.
    """
    counts = [shards for shards in SHARD_COUNTS if shards <= most_shards]
    seen: dict[str, dict[int, list[float]]] = {}
    for _ in range(rounds):
        for shards, (balance, tasks) in product(counts, BALANCES.items()):
            rate = requests_per_second(cpu_seconds, shards, tasks=tasks, requests=requests)
            microseconds = us_per_rollout(cpu_seconds, shards, tasks=tasks)
            for name, result in (("requests_per_second", rate), ("us_per_rollout", microseconds)):
                seen.setdefault(f"{name}, {balance}", {}).setdefault(shards, []).append(result)
    medians = {
        name: {str(shards): round(statistics.median(results)) for shards, results in by_shards.items()}
        for name, by_shards in seen.items()
    }
    return medians | {
        "decisions_per_rollout": ROLLOUT_DECISIONS,
        "max_batch_size": MAX_BATCH,
        "rounds": rounds,
    }
