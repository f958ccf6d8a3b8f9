"""The rule that combines action requests into a dynamic batch for one forward pass."""

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
