"""The inference side of a planned run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rlinf_async.core.tensors import Tree
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Piece
from rlinf_async.lab.virtual.times import Times, WayTimes
from rlinf_async.loops.request_broker import Pending, RequestBroker
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.weight_broker import WeightBroker
from rlinf_async.observe.meters import BusyMeter


class VirtualRank:
    """One inference rank: answers are the version that made them; fills `Policy` and `LoadablePolicy`."""

    def __init__(self, rank: int, times: Times, *, busy: BusyMeter) -> None:
        self._rank, self._times, self._busy = rank, times, busy
        self._weights = asyncio.Lock()
        self.version = 0

    async def act(self, batch: Sequence[Pending]) -> list[int]:
        async with self._weights:
            with self._busy.busy(self._rank):
                await asyncio.sleep(self._pass_s(batch))
            return [self.version] * len(batch)

    def _pass_s(self, batch: Sequence[Pending]) -> float:
        """Return the seconds of a batch of requests for actions, or of one for scores: the learner's own
        pass.
        """
        samples = sum(pending.size for pending in batch)
        if batch[0].request.mode == "score":
            return self._times.training.pass_s(samples)
        return self._times.policy.forward_s(samples)

    async def load(self, version: int, data: object) -> None:
        async with self._weights:
            await asyncio.sleep(self._times.weights.load_s)
            self.version = version


class RankWeights:
    """The weight broker as one rank sees it; fills `loops.ports.WeightPort`."""

    def __init__(self, broker: WeightBroker, rank: int) -> None:
        self._broker, self._rank = broker, rank

    async def next(self) -> tuple[int, Any] | None:
        return await self._broker.next(self._rank)

    async def applied(self, version: int) -> None:
        self._broker.applied(self._rank, version)


class VirtualScorer:
    """Asks for as many scores as a learner rank does, and gets none; fills `loops.ports.Scorer`."""

    def __init__(
        self,
        requests: RequestBroker,
        way: WayTimes,
        *,
        published: Callable[[int], Awaitable[object]],
        settings: RunSettings,
    ) -> None:
        self._requests, self._way, self._published, self._settings = requests, way, published, settings

    async def score(self, piece: Piece, version: int) -> Tree:
        await self._published(version)
        total, most = piece.size * (self._settings.horizon + 1), self._settings.max_batch_size
        sizes = [min(most, total - start) for start in range(0, total, most)]
        await asyncio.gather(*(self._ask(size) for size in sizes))
        return {}

    async def _ask(self, size: int) -> None:
        half = self._way.request_s / 2
        await asyncio.sleep(half)
        asker = 2 * self._settings.plan.shards
        request = ActionRequest(
            shard=asker, number=next(REQUEST_NUMBERS), size=size, payload=None, mode="score"
        )
        await self._requests.act(request)
        await asyncio.sleep(half)
