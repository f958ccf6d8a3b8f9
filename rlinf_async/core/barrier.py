"""The rule of batches with level 2 off: a batch holds every shard that is inside a rollout."""

from __future__ import annotations

from typing import Generic

from rlinf_async.core.batching import R

Lap = tuple[int, int]
"""The batch and the epoch of a rollout for training."""
BEFORE_ALL: Lap = (-1, -1)
"""Smaller than every lap."""


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
