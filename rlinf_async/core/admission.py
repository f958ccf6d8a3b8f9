"""The gate: which rollouts may start, so that no work is done that would be too old."""

from __future__ import annotations

from collections import deque

from rlinf_async.core.types import Ticket


class AdmissionGate:
    """Paces rollouts by policy version; a pure state machine that neither waits nor counts time.

    Every shard contributes `epochs` rollouts to every global batch, as in the synchronous loop, so
    that fast environments are not over-represented. Batch `b` is trained by version `b`; a rollout
    for it may start once version `b - max_staleness` is published. Hence, when every action is made by
    a published version, no trained sample is older than `max_staleness` versions. A refunded ticket
    is handed out again before anything newer.
    """

    def __init__(
        self, *, shards: int, epochs: int, max_staleness: int, until: int | None = None, version: int = 0
    ) -> None:
        """`until` is the number of global batches of the run: nothing is started that nobody would train."""
        if max_staleness < 0:
            raise ValueError(f"max_staleness={max_staleness} must be at least 0")
        if shards < 1 or epochs < 1:
            raise ValueError(f"shards={shards} and epochs={epochs} must be at least 1")
        self.shards = shards
        self.epochs = epochs
        self.max_staleness = max_staleness
        self.until = until
        self.version = version
        self.closed = False
        self._next = [(version, 0)] * shards
        self._refunded: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]

    def admit(self, shard: int) -> Ticket | None:
        """A ticket for the next rollout of `shard`, or None while it would be too far ahead."""
        if self.closed:
            return None
        refunded = self._refunded[shard]
        batch, epoch = refunded[0] if refunded else self._next[shard]
        if batch > self.version + self.max_staleness or self._beyond_end(batch):
            return None
        if refunded:
            refunded.popleft()
        else:
            self._next[shard] = (batch, epoch + 1) if epoch + 1 < self.epochs else (batch + 1, 0)
        return Ticket(shard=shard, batch=batch, epoch=epoch, version=self.version)

    def finished(self, shard: int) -> bool:
        """Whether `shard` has nothing left to start in this run."""
        if self.closed:
            return True
        return not self._refunded[shard] and self._beyond_end(self._next[shard][0])

    def publish(self, version: int) -> None:
        """All inference ranks act with `version` from now on."""
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.version = version

    def refund(self, ticket: Ticket) -> None:
        """The rollout of `ticket` was refused or lost: let its shard collect it again."""
        self._refunded[ticket.shard].append((ticket.batch, ticket.epoch))

    def close(self) -> None:
        """Admit nothing more; rollouts that have started finish."""
        self.closed = True

    def _beyond_end(self, batch: int) -> bool:
        return self.until is not None and batch >= self.until
