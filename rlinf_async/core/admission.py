"""The gate: which rollouts may start, so that no work is done that would be too old."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import product

from rlinf_async.core.types import Ticket

Place = tuple[int, int, int]
"""The place of a rollout in the data of a run: (batch, epoch, place)."""


class _Line:
    """Hands out the places of batch after batch, in order; those that were given back come first."""

    def __init__(
        self, places: Iterable[tuple[int, int]], *, batch: int, slowness: Mapping[int, float] | None = None
    ) -> None:
        """`places`: (epoch, place) of every rollout that this line contributes to a batch.

        With `slowness` (of a place), the slowest places of a batch come first; those it lacks before them.
        """
        self._all = list(places)
        self._batch = batch
        self._slowness = slowness
        self._places = self._in_order()
        self._position = 0
        self._back: deque[Place] = deque()
        self._places_to_skip: set[Place] = set()

    @property
    def head(self) -> Place:
        """The (batch, epoch, place) that `pop` would hand out next."""
        return self._back[0] if self._back else self._next

    def pop(self) -> None:
        if self._back:
            self._back.popleft()
            return
        self._advance()
        self._pass_over_done()

    def skip(self, places: Iterable[Place]) -> None:
        """Never hand out those of `places` that are in this line; places of other lines are ignored."""
        self._places_to_skip.update(places)
        self._pass_over_done()

    @property
    def _next(self) -> Place:
        return (self._batch, *self._places[self._position])

    def _advance(self) -> None:
        self._position += 1
        if self._position == len(self._places):
            self._batch, self._position = self._batch + 1, 0
            self._places = self._in_order()

    def order(self) -> None:
        """Heed what is known now, in a batch of which nothing has been handed out."""
        if not self._position:
            self._places = self._in_order()
            self._pass_over_done()

    def _in_order(self) -> list[tuple[int, int]]:
        if self._slowness is None:
            return self._all
        slowness = self._slowness
        # Minus infinity comes first. The sort is stable: equal places keep the order of the synchronous loop.
        return sorted(self._all, key=lambda place: -slowness.get(place[1], math.inf))

    def _pass_over_done(self) -> None:
        while self._next in self._places_to_skip:
            # A place is passed once: it is forgotten here, so that the set does not grow.
            self._places_to_skip.remove(self._next)
            self._advance()

    def give_back(self, place: Place) -> None:
        self._back.append(place)


class AdmissionGate:
    """Paces rollouts by policy version; a pure state machine that neither waits nor counts time.

    Every shard contributes `epochs` rollouts to every global batch, as in the synchronous loop, so that fast
    environments are not over-represented. With `any_place`, the next shard that is free takes the next place
    of the batch, with the tasks of that place. The places of a batch are then handed out in the order of the
    seconds that they took before, the slowest first: the rollout that begins last should not take longest.

    Batch `b` is trained by version `b`; a rollout for it may start once version `b - max_staleness` is
    published. Hence, when every action is made by a published version, no trained sample is older than
    `max_staleness` versions. A refunded ticket is handed out again before anything newer.
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
        """`until` is the number of global batches of the run: no rollout starts that no batch would train."""
        if max_staleness < 0:
            raise ValueError(f"max_staleness={max_staleness} must be at least 0")
        if shards < 1 or epochs < 1:
            raise ValueError(f"shards={shards} and epochs={epochs} must be at least 1")
        self.max_staleness = max_staleness
        self.until = until
        self.version = version
        self.closed = False
        self._seconds: dict[int, float] = {}
        if any_place:
            places = product(range(epochs), range(shards))
            # One line, shared by all shards. It reads `_seconds` as it is then: change the dict in place.
            self._lines = [_Line(places, batch=version, slowness=self._seconds)] * shards
        else:
            self._lines = [_Line(product(range(epochs), [shard]), batch=version) for shard in range(shards)]

    def admit(self, shard: int) -> Ticket | None:
        """A ticket for the next rollout of `shard`, or None while it would be too far ahead."""
        if self.closed:
            return None
        line = self._lines[shard]
        batch, epoch, place = line.head
        if batch > self.version + self.max_staleness or self._beyond_end(batch):
            return None
        line.pop()
        return Ticket(shard=shard, batch=batch, epoch=epoch, place=place, version=self.version)

    def finished(self, shard: int) -> bool:
        """Return True if `shard` has nothing left to start in this run."""
        return self.closed or self._beyond_end(self._lines[shard].head[0])

    def skip(self, places: Iterable[Place]) -> None:
        """The rollouts of `places`, none of which has been admitted, are there already: a run is resumed."""
        # In a set of its own: every line looks through all of them, and `places` may be an iterator.
        finished_places = set(places)
        # Each line once: a line that all shards share would note again, for ever, what it has passed.
        for line in {id(line): line for line in self._lines}.values():
            line.skip(finished_places)

    def record_duration(self, ticket: Ticket, seconds: float) -> None:
        """Record the seconds that the rollout of `ticket` took: the order of later batches heeds them."""
        # A running mean in which the last rollout counts half; the first stands for itself.
        self._seconds[ticket.place] = (self._seconds.get(ticket.place, seconds) + seconds) / 2
        self._lines[ticket.shard].order()

    def publish(self, version: int) -> None:
        """All inference ranks act with `version` from now on."""
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.version = version

    def refund(self, ticket: Ticket) -> None:
        """The rollout of `ticket` was refused or lost: let it be collected again."""
        self._lines[ticket.shard].give_back((ticket.batch, ticket.epoch, ticket.place))

    def close(self) -> None:
        """Admit nothing more; rollouts that have started finish."""
        self.closed = True

    def _beyond_end(self, batch: int) -> bool:
        return self.until is not None and batch >= self.until
