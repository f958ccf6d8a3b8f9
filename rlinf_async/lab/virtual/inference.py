"""The inference side of a planned run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async.core.types import ActionRequest
from rlinf_async.lab.virtual.times import Times, WayTimes
from rlinf_async.loops.request_broker import Pending, RequestBroker
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


class ScoreRequests:
    """The request broker as a learner rank asks it for scores, of which it gets none; fills `PolicyPort`."""

    def __init__(self, requests: RequestBroker, way: WayTimes) -> None:
        self._requests, self._way = requests, way
        self.rollout = requests.rollout

    async def act(self, request: ActionRequest) -> Any:
        half = self._way.request_s / 2
        await asyncio.sleep(half)
        version = await self._requests.act(request)
        await asyncio.sleep(half)
        return {"version": version, "scores": {"none": torch.zeros(request.size)}}
