"""Environments, ranks and learners of a `Schedule`: they take their time, and check what they are given."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from rlinf_async.core.types import Piece
from rlinf_async.loops.trajectory_broker import TrajectoryBroker


@dataclass
class Env:
    schedule: Any
    shard: int
    size: int
    horizon: int

    async def start(self):
        await self.schedule.nap("env", self.shard)

    async def step(self, answer):
        await self.schedule.nap("env", self.shard)

    def observation(self, output):
        return self.schedule.node(self.shard)

    def finish(self):
        pass


class Waiting:
    """Knows whether somebody waits in it."""

    waits = False

    async def _wait_for(self, what):
        self.waits = True
        try:
            return await what
        finally:
            self.waits = False


@dataclass
class Trajectories(Waiting):
    broker: TrajectoryBroker

    async def admit(self, shard):
        return await self._wait_for(self.broker.admit(shard))

    async def put(self, ticket, pieces):
        await self.broker.put(ticket, pieces)


@dataclass
class Asking:
    """Requests bear the node of their shard."""

    schedule: Any
    shard: int

    def rollout(self, shard):
        return self.schedule.requests.rollout(shard)

    async def act(self, request):
        return await self.schedule.requests.act(replace(request, node=request.payload))


class Recorder:
    def __init__(self, schedule, ticket):
        self._schedule, self._ticket, self._versions = schedule, ticket, []

    def append(self, output, answer):
        claimed, true, mode = answer
        assert (claimed, mode) == (true, "train")
        self._versions.append(claimed)

    def build(self, output, answer):
        schedule, ticket, versions = self._schedule, self._ticket, self._versions
        assert min(versions) >= ticket.version, "an action is older than what was published at its start"
        plan, lie = schedule.plan, schedule.rng.random() < schedule.lies
        oldest = ticket.batch - schedule.bound - 1 if lie else min(versions)
        schedule.out.produced += plan.envs_per_shard
        schedule.out.refused += plan.envs_per_shard * lie
        return [
            Piece(
                ticket=ticket,
                part=part,
                rank=plan.learner_rank(ticket.place, part),
                size=plan.piece_size,
                oldest=oldest,
                newest=max(versions),
                env_steps=plan.piece_size * len(versions),
                payload=versions,
            )
            for part in range(plan.parts)
        ]


class Policy:
    def __init__(self, schedule, rank):
        self._schedule, self._rank, self._lock, self.version = schedule, rank, asyncio.Lock(), None

    async def act(self, batch):
        async with self._lock:
            true = self.version
            await self._schedule.nap("act", self._rank)
            modes = [pending.request.mode for pending in batch]
            self._schedule.out.evaluated += modes.count("eval")
            return [(self.version, true, mode) for mode in modes]

    async def load(self, version, data):
        async with self._lock:
            await self._schedule.nap("load", self._rank)
            assert data == ("the weights of", version)
            # The same once more, if its loop was ended before it could say so.
            assert self.version is None or version >= self.version
            self.version = version


@dataclass
class Requests(Waiting):
    schedule: Any
    rank: int

    async def take(self):
        return await self._wait_for(self.schedule.requests.take(self.rank, self.schedule.node(self.rank)))

    def answering(self, batch):
        return self.schedule.requests.answering(batch)


@dataclass
class Weights:
    schedule: Any
    rank: int

    async def next(self):
        return await self.schedule.weights.next(self.rank)

    async def applied(self, version):
        await self.schedule.nap("load", self.rank)
        self.schedule.weights.applied(self.rank, version)


@dataclass
class Pieces:
    schedule: Any
    rank: int

    async def take(self, batch, *, whole):
        return await self.schedule.broker.take(self.rank, batch, whole=whole)


@dataclass
class Learner:
    schedule: Any
    rank: int

    def begin(self, batch):
        self.batch = batch

    def accept(self, pieces):
        out, bound = self.schedule.out, self.schedule.bound
        for piece in pieces:
            versions = piece.payload
            assert (piece.rank, piece.ticket.batch) == (self.rank, self.batch)
            assert self.batch - min(versions) <= bound, "an action is older than the bound"
            assert max(versions) <= self.batch, "an action was made by a policy that is not trained yet"
            out.trained[(self.batch, *piece.key, self.rank)] += 1
            out.staleness[self.batch - min(versions)] += piece.size
            out.mixed += min(versions) < max(versions)
            out.backwards += versions != sorted(versions)

    def finish(self):
        return {}
