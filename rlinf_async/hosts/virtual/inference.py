"""The inference side of a planned run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from rlinf_async.hosts.virtual.times import PolicyTimes, Times
from rlinf_async.loops.request_broker import Pending
from rlinf_async.loops.weight_broker import WeightBroker
from rlinf_async.observe.meters import BusyMeter


class VirtualRank:
    """One inference rank: answers are the version that made them; fills `Policy` and `LoadablePolicy`."""

    def __init__(
        self, rank: int, times: Times, *, device: AbstractAsyncContextManager[Any], busy: BusyMeter
    ) -> None:
        self._rank, self._times, self._device, self._busy = rank, times, device, busy
        self._weights = asyncio.Lock()
        self.version = 0

    async def act(self, batch: Sequence[Pending]) -> list[int]:
        async with self._weights, self._device:
            with self._busy.busy(self._rank):
                await asyncio.sleep(forward_s(self._times.policy, batch) + self._times.way.batch_s)
            return [self.version] * len(batch)

    async def load(self, version: int, data: object) -> None:
        async with self._weights:
            await asyncio.sleep(self._times.weights.load_s)
            self.version = version


def forward_s(policy: PolicyTimes, batch: Sequence[Pending]) -> float:
    """Seconds of the forward passes for a batch: of all, and of those whose episodes have just ended."""
    finals = sum(pending.size for pending in batch if pending.request.payload)
    seconds = policy.forward_s(sum(pending.size for pending in batch))
    return seconds + (policy.forward_s(finals) if finals else 0.0)


class RankWeights:
    """The weight broker as one rank sees it; fills `loops.ports.WeightPort`."""

    def __init__(self, broker: WeightBroker, rank: int) -> None:
        self._broker, self._rank = broker, rank

    async def next(self) -> tuple[int, Any] | None:
        return await self._broker.next(self._rank)

    async def applied(self, version: int) -> None:
        self._broker.applied(self._rank, version)
