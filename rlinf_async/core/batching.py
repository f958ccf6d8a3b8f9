"""The rules that combine action requests into a batch for one forward pass."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class SizedRequest(Protocol):
    @property
    def shard(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def lap(self) -> tuple[int, int] | None: ...


R = TypeVar("R", bound=SizedRequest)
Lap = tuple[int, int]
"""The batch and the epoch of a rollout for training."""
BEFORE_ALL: Lap = (-1, -1)
"""Smaller than every lap."""


class DynamicBatcher(Generic[R]):
    """Closes a batch when it is full, or when its oldest request has waited `max_wait` seconds.

    A pure state machine: time comes in as `now`, and the caller sleeps until `deadline`.
    `max_size` counts samples, not requests; a request is never split, never lost, and leaves in
    arrival order. With `max_wait=0` a batch is all that waits when an accelerator becomes idle (RL-VLA3
    section 3.2; in a closed loop the time of an idle accelerator is lost).
    """

    def __init__(self, *, max_size: int, max_wait: float = 0.0) -> None:
        if max_size < 1:
            raise ValueError(f"max_size={max_size} must be at least 1")
        if max_wait < 0:
            raise ValueError(f"max_wait={max_wait} must be at least 0")
        self.max_size = max_size
        self.max_wait = max_wait
        self._waiting: deque[tuple[float, R]] = deque()
        self._size = 0

    @property
    def oldest(self) -> float | None:
        """The time at which the oldest request arrived, or None while no request waits."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def deadline(self) -> float | None:
        """The time at which the oldest request must leave, or None while no request waits."""
        return self._waiting[0][0] + self.max_wait if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: R, now: float) -> None:
        """Queue `request`, which arrived at `now`, behind those that arrived before.

        Raises:
            ValueError: `request` alone is larger than a batch may be.
        """
        # No batch could hold it, and at the head of the queue it would hold up all others.
        if request.size > self.max_size:
            raise ValueError(
                f"a request of {request.size} environments exceeds max_batch_size={self.max_size}"
            )
        later = 0
        while later < len(self._waiting) and self._waiting[-1 - later][0] > now:
            later += 1
        self._waiting.insert(len(self._waiting) - later, (now, request))
        self._size += request.size

    def remove(self, request: R) -> None:
        """Forget a request that waits."""
        # By identity: comparing two requests would compare their payloads, which may be tensors.
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] is not request)
        self._size = sum(request.size for _, request in self._waiting)

    def take(self, now: float) -> list[R]:
        """The next batch in arrival order, or [] if it is neither full nor due."""
        deadline = self.deadline
        if deadline is None or (self._size < self.max_size and now < deadline):
            return []
        return self._pop()

    def drain(self) -> list[R]:
        """The next batch without waiting for more, or [] if no request waits."""
        return self._pop()

    def _pop(self) -> list[R]:
        batch: list[R] = []
        room = self.max_size
        # The first request that does not fit ends the batch. If smaller ones could overtake it, a large
        # request might wait for ever.
        while self._waiting and self._waiting[0][1].size <= room:
            _, request = self._waiting.popleft()
            room -= request.size
            batch.append(request)
        self._size -= self.max_size - room
        return batch


class BarrierBatcher(Generic[R]):
    """Level 2 off: a batch holds the requests of every shard that is inside a rollout.

    It counts the shards inside a rollout rather than all shards: behind a gate that holds some of them
    back, waiting for all would never end. Rollouts may end at different times: a shard that is a lap ahead
    waits until no other shard is in an earlier lap, as in a synchronous loop. `expected` names shards that
    the gate lets start each lap together: a batch of a lap waits until each of them has asked in that lap,
    so that the batch is the same in whatever order they arrive.
    """

    def __init__(self, *, expected: frozenset[int] = frozenset()) -> None:
        self._expected_shards = expected
        self._in_flight: set[int] = set()
        self._waiting: dict[int, R] = {}
        self._laps: dict[int, Lap] = {}
        """The lap of each shard's last request."""

    @property
    def deadline(self) -> float | None:
        return None

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, shard: int) -> None:
        self._in_flight.add(shard)

    def end(self, shard: int) -> None:
        self._in_flight.discard(shard)

    def add(self, request: R, now: float) -> None:
        if request.shard in self._waiting:
            raise ValueError(f"shard {request.shard} asked again before it was answered")
        self._waiting[request.shard] = request
        if request.lap is not None:
            self._laps[request.shard] = request.lap

    def remove(self, request: R) -> None:
        """Forget a waiting request; batches still wait for its shard."""
        del self._waiting[request.shard]

    def take(self, now: float) -> list[R]:
        """Return the requests of the earliest lap, by shard number; [] while a shard in flight has not asked,
        or an expected shard has not asked in that lap.
        """
        laps = [request.lap for request in self._waiting.values() if request.lap is not None]
        lap = min(laps, default=None)
        if not self._in_flight <= self._waiting.keys() or (lap is not None and self._is_late(lap)):
            return []
        return self._pop([shard for shard, one in self._waiting.items() if one.lap in (None, lap)])

    def _is_late(self, lap: Lap) -> bool:
        """Return True if an expected shard has not asked in `lap` yet. A shard that has asked in it, and is
        no longer in flight, has ended the lap, and may have nothing left to do.
        """
        return any(self._laps.get(shard, BEFORE_ALL) < lap for shard in self._expected_shards)

    def drain(self) -> list[R]:
        return self._pop(list(self._waiting))

    def _pop(self, shards: list[int]) -> list[R]:
        # By number, so that in a deterministic run a pass has the same rows in the same order, whatever the
        # order of arrival.
        return [self._waiting.pop(shard) for shard in sorted(shards)]
