"""The broker between env loops and the learner: it admits rollouts, and keeps trajectories."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from rlinf_async.core.restarts import Generations
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.waiting import Bell
from rlinf_async.observe.meters import Spread

MAX_REFUSALS = 8
"""Times that a refused rollout is collected again before the run ends: an inference rank that gets no new
weights would have its rollouts refused for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBatch:
    """The staleness and the environment steps of a batch, known once it is trained."""

    staleness: Spread
    env_steps: int
    """Environment steps as the synchronous loop counts them: to the horizon of every rollout."""
    skipped_env_steps: int = 0
    """The part of `env_steps` that was not made, because the episodes had ended."""
    skipped_decisions: int = 0
    """Decisions that were not made, for the same reason; the synchronous loop makes one per sample."""

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> TrainedBatch:
        staleness = Spread()
        for piece in pieces:
            staleness.add(piece.staleness, piece.size)
        return cls(
            staleness=staleness,
            env_steps=sum(piece.env_steps for piece in pieces),
            skipped_env_steps=sum(piece.skipped_env_steps for piece in pieces),
            skipped_decisions=sum(piece.skipped_decisions for piece in pieces),
        )

    def skipped_shares(self, *, decisions: int) -> dict[str, float]:
        """The skipped shares of the synchronous loop's work for a batch of `decisions`."""
        return {
            "env_steps": self.skipped_env_steps / self.env_steps if self.env_steps else 0.0,
            "decisions": self.skipped_decisions / decisions,
        }


class TrajectoryBroker:
    """The gate and the buffer of a run, with waits in front of them.

    Env loops call `admit` and `put`; learner ranks call `take`; the weight broker calls `publish` once every
    inference rank has new weights, which both closes the ledger of the trained batch and opens the gate.
    """

    def __init__(
        self,
        plan: ShardPlan,
        *,
        max_staleness: int,
        any_place: bool = False,
        until: int | None = None,
        version: int = 0,
        ledger: Ledger | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self._plan = plan
        self.gate = AdmissionGate(
            shards=plan.shards,
            epochs=plan.rollout_epochs,
            max_staleness=max_staleness,
            until=until,
            version=version,
            any_place=any_place,
        )
        self.buffer = TrajectoryBuffer(pieces_per_rank=plan.pieces_per_rank, max_staleness=max_staleness)
        self.buffer.restore(version, ledger or Ledger())
        self._trained_batches: dict[int, TrainedBatch] = {}
        # Two bells: with a single one, every handed-over rollout would wake all shards at the gate.
        self._gate_bell = Bell(deadline_s=deadline_s)
        self._buffer_bell = Bell(deadline_s=deadline_s)
        self._outstanding: dict[Ticket, float] = {}
        """Rollouts that are being collected, and the time of their admission in seconds."""
        self._generations = Generations()
        self._refusals: Counter[tuple[int, int, int]] = Counter()

    @property
    def ledger(self) -> Ledger:
        return self.buffer.ledger

    async def admit(self, shard: int, generation: int = 0) -> Ticket | None:
        """Wait until `shard` may start a rollout; None if it has no rollout left, or its worker was lost."""

        def attempt() -> tuple[Ticket | None] | None:
            # In a tuple, as `Bell.first` waits on at a bare None.
            if not self._generations.lives(shard, generation):
                return (None,)
            ticket = self.gate.admit(shard)
            return (ticket,) if ticket is not None or self.gate.finished(shard) else None

        (ticket,) = await self._gate_bell.first(attempt, waiting_for=lambda: self._at_the_gate(shard))
        if ticket is None:
            return None
        # With the generation, so that a late `put` of a dead process matches no rollout of its successor.
        ticket = replace(ticket, generation=generation)
        self._outstanding[ticket] = asyncio.get_running_loop().time()
        return ticket

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand over a rollout. If the buffer refuses any of it as stale, its ticket is refunded.

        The pieces of one rollout share their versions, so they are refused together. A rollout that was given
        up before is ignored: the ledger has it already, and another rollout has its place.
        """
        # No await from here on, so that ledger and gate change in one step.
        admitted_at = self._outstanding.pop(ticket, None)
        if admitted_at is None:
            return
        # The whole time from the gate to the hand-over, with the waits for inference: the order of places
        # uses that.
        self.gate.record_duration(ticket, asyncio.get_running_loop().time() - admitted_at)
        refusals = [self.buffer.put(piece) for piece in pieces]
        # Other refusals need no refund: a duplicate has arrived before, a closed batch is trained.
        if "stale" in refusals:
            self._count_refusal(ticket, pieces)
            self.gate.refund(ticket)
            self._gate_bell.ring()
        self._buffer_bell.ring()

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        """Give up the rollout of `ticket`, to be collected again; it counts as refused for `reason`.

        A rollout that was handed over or given up before is ignored.
        """
        if self._outstanding.pop(ticket, None) is None:
            return
        # Conservation holds without the pieces: the rollout counts as produced and as refused.
        count = self._plan.envs_per_shard
        self.ledger.produced += count
        self.ledger.refused[reason] += count
        self.gate.refund(ticket)
        self._gate_bell.ring()

    async def shards_lost(self, shards: Collection[int], reason: str, generation: int) -> int:
        """The env worker of `shards` died: give up its rollouts, and return their number. Its replacement has
        `generation`."""
        self._generations.begin(shards, generation)
        tickets = [ticket for ticket in self._outstanding if ticket.shard in shards]
        # Sorted, as the gate hands out refunded slots in the order of their refunds.
        for ticket in sorted(tickets, key=lambda ticket: (ticket.batch, ticket.epoch)):
            await self.abandon(ticket, reason)
        self._gate_bell.ring()
        return len(tickets)

    async def take(self, rank: int, batch: int, *, whole: bool) -> tuple[list[Piece], bool]:
        """Take pieces of `batch` for `rank`; True if they are its last. See `PiecePort.take`."""

        def attempt() -> list[Piece] | None:
            least = self.buffer.missing(batch, rank) if whole else 1
            if self.buffer.waiting(batch, rank) < least:
                return None
            return self.buffer.take(batch, rank)

        pieces = await self._buffer_bell.first(attempt, waiting_for=lambda: self._trajectories(rank, batch))
        # Without an await since the take, so that no other piece can have come in between.
        return pieces, self.buffer.missing(batch, rank) == 0

    async def collected(self, version: int) -> None:
        """Wait until no rollout needs the weights before `version` any more, so that every lag is the same.

        Then version `b - max_staleness` alone acts in batch `b`, and the first version in the first batches.
        """
        # The last batch of rollouts by version `version - 1`; a run may end before it.
        batch = version + self.gate.max_staleness - 1
        if self.gate.until is not None:
            batch = min(batch, self.gate.until - 1)
        await self._buffer_bell.first(
            lambda: self.buffer.complete(batch, self._plan.learner_ranks) or None,
            waiting_for=lambda: f"all rollouts of batch {batch} to be collected; {self.ledger}",
        )

    def publish(self, version: int) -> None:
        """All inference ranks act with `version` or a newer one, so that every batch before it is trained."""
        # Several versions may be published at once, when a slow rank skips some.
        for batch in range(self.gate.version, version):
            self._trained_batches[batch] = TrainedBatch.of(self.buffer.finish(batch))
        # After the loop, which starts at the gate's old version.
        self.gate.publish(version)
        # Checked at every version, so that a lost trajectory ends the run soon after it was lost.
        self.ledger.check(self.buffer.held())
        self._gate_bell.ring()
        self._buffer_bell.ring()

    def pop_trained(self, batch: int) -> TrainedBatch:
        """Return and forget the facts of `batch`, which must be trained: a later version is published."""
        return self._trained_batches.pop(batch)

    def pause(self) -> int:
        """Begin no further batch, so that env loops end; return the first batch that has not begun."""
        batch = self.gate.pause()
        self._gate_bell.ring()
        return batch

    def go_on(self, plan: ShardPlan) -> None:
        """Go on after `pause`, when all env loops have ended, with the shards of `plan`.

        Raises:
            RuntimeError: rollouts are still being collected.
        """
        if self._outstanding:
            raise RuntimeError(f"{len(self._outstanding)} rollouts are still being collected")
        self._plan = plan
        self.gate.go_on(plan.shards)

    def close(self) -> None:
        """Admit no more rollouts; those that have started continue, and count as in flight."""
        self.gate.close()
        self._gate_bell.ring()

    def fail(self, error: BaseException) -> None:
        """End every wait with `error`."""
        for bell in (self._gate_bell, self._buffer_bell):
            bell.fail(error)

    def _count_refusal(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        self._refusals[ticket.place, ticket.batch, ticket.epoch] += 1
        if self._refusals[ticket.place, ticket.batch, ticket.epoch] > MAX_REFUSALS:
            raise RuntimeError(
                f"a rollout of shard {ticket.shard} for batch {ticket.batch} was refused {MAX_REFUSALS + 1} "
                f"times: version {self.gate.version} is published, but actions are still made by version "
                f"{min(piece.oldest for piece in pieces)}; weights do not reach the inference ranks"
            )

    def _at_the_gate(self, shard: int) -> str:
        return (
            f"the gate to let shard {shard} start: version {self.gate.version} is published, "
            f"max_staleness is {self.gate.max_staleness}, {len(self._outstanding)} rollouts are being "
            f"collected; {self.ledger}"
        )

    def _trajectories(self, rank: int, batch: int) -> str:
        have = self._plan.pieces_per_rank - self.buffer.missing(batch, rank)
        have += self.buffer.waiting(batch, rank)
        return (
            f"trajectories of batch {batch} on learner rank {rank}: {have} of {self._plan.pieces_per_rank} "
            f"pieces have arrived, {len(self._outstanding)} rollouts are being collected; {self.ledger}"
        )


class RankPieces:
    """The learner side of the buffer, for one rank; fills `loops.ports.PiecePort`."""

    def __init__(self, broker: TrajectoryBroker, rank: int) -> None:
        self._broker = broker
        self._rank = rank

    async def take(self, batch: int, *, whole: bool) -> tuple[Sequence[Piece], bool]:
        return await self._broker.take(self._rank, batch, whole=whole)


def trajectory_broker(
    settings: RunSettings, *, version: int = 0, ledger: Ledger | None = None
) -> TrajectoryBroker:
    """Return the gate and the buffer of a run, at its start with `version`."""
    return TrajectoryBroker(
        settings.plan,
        max_staleness=settings.asynchrony.max_staleness,
        any_place=settings.asynchrony.takes_tasks,
        until=settings.batches,
        version=version,
        ledger=ledger,
        deadline_s=settings.asynchrony.advanced.deadline_s,
    )


async def may_offer(settings: RunSettings, version: int, trajectories: TrajectoryBroker) -> None:
    """Wait until the weights of `version` may be offered: in a deterministic run until all rollouts that
    need the version before have ended, else not at all.
    """
    if settings.asynchrony.deterministic:
        await trajectories.collected(version)
