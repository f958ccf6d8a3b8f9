"""The gate: it decides which rollouts may start, so that no rollout is collected that would be too old."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import product

from rlinf_async.core.types import Ticket

Slot = tuple[int, int, int]
"""The position of a rollout in the data of a run: (batch, epoch, place)."""


class _SlotQueue:
    """Hands out the slots of batch after batch, in order; slots that were given back come first.

    Places are sorted once a batch, so that a slot costs O(log n) of n places.
    """

    def __init__(
        self, places: Iterable[tuple[int, int]], *, batch: int, slowness: Mapping[int, float] | None = None
    ) -> None:
        """`places`: (epoch, place) of every rollout that this queue contributes to a batch.

        `slowness`: seconds of a rollout by place. With it, places without an entry come first, then the
        slowest ones, as they are when the first slot of a batch is handed out.
        """
        self._all_places = list(places)
        self._slowness = slowness
        self._slots_given_back: deque[Slot] = deque()
        self._slots_to_skip: set[Slot] = set()
        self._begin(batch)

    @property
    def batch(self) -> int:
        """The batch of the slot that `pop` hands out next."""
        return self._slots_given_back[0][0] if self._slots_given_back else self._batch

    def pop(self) -> Slot:
        """Remove the next slot, and return it."""
        if self._slots_given_back:
            return self._slots_given_back.popleft()
        if not self._position:
            self._sort()
        slot = (self._batch, *self._places[self._position])
        self._position += 1
        if self._position == len(self._places):
            self._begin(self._batch + 1)
        return slot

    def skip(self, slots: Iterable[Slot]) -> None:
        """Never hand out `slots`; no slot of their batches may have been handed out before."""
        self._slots_to_skip.update(slots)
        self._begin(self._batch)

    def give_back(self, slot: Slot) -> None:
        self._slots_given_back.append(slot)

    def _begin(self, batch: int) -> None:
        """Begin `batch`, or the first batch after it of which a slot is left."""
        while not (places := self._places_left(batch)):
            batch += 1
        self._batch, self._places, self._position = batch, places, 0
        # Without the batches before, so that the set does not grow.
        self._slots_to_skip = {slot for slot in self._slots_to_skip if slot[0] >= batch}

    def _places_left(self, batch: int) -> list[tuple[int, int]]:
        if not self._slots_to_skip:
            return self._all_places
        return [place for place in self._all_places if (batch, *place) not in self._slots_to_skip]

    def _sort(self) -> None:
        if (slowness := self._slowness) is not None:
            # Minus infinity comes first. The sort is stable: equal places keep the order of the synchronous
            # loop.
            self._places = sorted(self._places, key=lambda place: -slowness.get(place[1], math.inf))


class AdmissionGate:
    """Admits rollouts by policy version; a pure state machine that neither waits nor measures time.

    A rollout for global batch `batch` may start while

        batch <= version + max_staleness    (and batch < until, and the gate is open),

    where `version` is the newest published version. Batch `b` is trained by version `b`. So, if published
    versions, or newer ones, make every action, no trained sample is older than `max_staleness` versions.

    Every shard contributes `epochs` rollouts to every global batch, as in the synchronous loop, so that fast
    environments are not over-represented. With `any_place`, the next free shard takes the next place of the
    batch, with the tasks of that place. The places of a batch are then handed out by the seconds that their
    rollouts took before, the slowest first, so that the last rollout to begin is not the longest. The slot of
    a refunded ticket is handed out again before all newer ones.
    """

    def __init__(
        self,
        *,
        shards: int,
        epochs: int,
        max_staleness: int,
        until: int | None = None,
        version: int = 0,
        any_place: bool = False,
    ) -> None:
        """`until`: the number of global batches of the run, or None. No rollout starts for a later batch."""
        if max_staleness < 0:
            raise ValueError(f"max_staleness={max_staleness} must be at least 0")
        if shards < 1 or epochs < 1:
            raise ValueError(f"shards={shards} and epochs={epochs} must be at least 1")
        self.max_staleness = max_staleness
        self.until = until
        self.version = version
        self.closed = False
        self._epochs, self._any_place = epochs, any_place
        self._paused_before: int | None = None
        self._admitted = version - 1
        """The last batch for which a rollout has started."""
        self._begin(shards, batch=version)

    def _begin(self, shards: int, *, batch: int) -> None:
        """Begin with `batch`, of which no rollout has started."""
        self._seconds: dict[int, float] = {}
        epochs = range(self._epochs)
        if self._any_place:
            # One queue for all shards. It reads this `_seconds` at every sort: change the dict in place.
            places = product(epochs, range(shards))
            self._queues = [_SlotQueue(places, batch=batch, slowness=self._seconds)]
        else:
            self._queues = [_SlotQueue(product(epochs, [shard]), batch=batch) for shard in range(shards)]

    def admit(self, shard: int) -> Ticket | None:
        """A ticket for the next rollout of `shard`, or None while it would be too far ahead."""
        if self.closed:
            return None
        queue = self._queue(shard)
        if queue.batch > self.version + self.max_staleness or self._beyond_end(queue.batch):
            return None
        batch, epoch, place = queue.pop()
        self._admitted = max(self._admitted, batch)
        return Ticket(shard=shard, batch=batch, epoch=epoch, place=place, version=self.version)

    def finished(self, shard: int) -> bool:
        """Return True if `shard` has no rollout left to start in this run."""
        return self.closed or self._beyond_end(self._queue(shard).batch)

    def skip(self, slots: Iterable[Slot]) -> None:
        """Never admit `slots`, as a resumed run has their rollouts; none may have been admitted yet."""
        by_queue: dict[_SlotQueue, list[Slot]] = defaultdict(list)
        for slot in slots:
            by_queue[self._queue(slot[2])].append(slot)
        for queue, its_slots in by_queue.items():
            queue.skip(its_slots)

    def record_duration(self, ticket: Ticket, seconds: float) -> None:
        """Record the seconds that the rollout of `ticket` took, for the order of places in later batches."""
        # A running mean with half of the weight on the last rollout; the first one is the first mean.
        self._seconds[ticket.place] = (self._seconds.get(ticket.place, seconds) + seconds) / 2

    def publish(self, version: int) -> None:
        """All inference ranks act with `version` or a newer one from now on."""
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.version = version

    def refund(self, ticket: Ticket) -> None:
        """The rollout of `ticket` was refused or lost: let it be collected again."""
        self._queue(ticket.shard).give_back((ticket.batch, ticket.epoch, ticket.place))

    def pause(self) -> int:
        """Admit no rollout of a batch of which none has started; return the first such batch.

        Batches before it are collected to their end, and their shards then have no rollout left to start.
        """
        if self._paused_before is None:
            self._paused_before = self._admitted + 1
        return self._paused_before

    def go_on(self, shards: int) -> None:
        """Go on after `pause`, with another number of shards. All batches before must be collected."""
        if self._paused_before is None:
            raise ValueError("the gate is not paused")
        batch, self._paused_before = self._paused_before, None
        self._begin(shards, batch=batch)

    def close(self) -> None:
        """Admit no more rollouts; those that have started continue."""
        self.closed = True

    def _queue(self, place: int) -> _SlotQueue:
        """The queue of a place, or of the shard with its number: its own, or the one that all share."""
        return self._queues[0 if self._any_place else place]

    def _beyond_end(self, batch: int) -> bool:
        paused, until = self._paused_before, self.until
        return (until is not None and batch >= until) or (paused is not None and batch >= paused)
