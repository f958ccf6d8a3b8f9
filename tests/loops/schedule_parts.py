"""Environments, ranks and learners of a `Schedule`: they take their time, and check what they are given."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.requests import answering, asked_until_answered, settle
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from tests.making import rollout


@dataclass
class Life:
    """A process: what it had not said when it died it never says."""

    generation: int = 0
    dead: bool = False


@dataclass
class Env:
    schedule: Any
    shard: int
    size: int
    horizon: int
    played: int = 0
    ends: list = field(default_factory=list)
    """The decision at which each episode ends, at the horizon or before."""

    async def start(self):
        await self.schedule.nap("env", self.shard)
        self._break()
        draw, ends = self.schedule.rng.randint, self.schedule.ends_early
        self.played = 0
        self.ends = [draw(1, self.horizon) if ends else self.horizon + 1 for _ in range(self.size)]
        return 0

    async def step(self, answer):
        await self.schedule.nap("env", self.shard)
        self._break()
        self.played += 1
        return self.played

    def waiting(self, output):
        waiting = sum(end > output for end in self.ends)
        self.schedule.out.left_out += self.size - waiting
        return waiting

    async def restart(self):
        await self.schedule.nap("env", self.shard)
        self.schedule.out.restarts["environments"] += 1
        self._break()

    def _break(self):
        if self.schedule.rng.random() < self.schedule.breaks:
            raise ShardFailure("broken")

    def observation(self, output):
        return self.schedule.node(self.shard)

    async def finish(self):
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
    schedule: Any
    broker: TrajectoryBroker
    life: Life = field(default_factory=Life)
    bears: int = 0
    """Rollouts that have begun and are not handed over: they would be lost with their loop."""

    async def admit(self, shard):
        if self.bears:
            ticket = await self.broker.admit(shard, self.life.generation)
        else:
            ticket = await self._wait_for(self.broker.admit(shard, self.life.generation))
        if ticket is not None:
            self.bears += 1
        return ticket

    async def put(self, ticket, pieces):
        await self.broker.put(ticket, pieces)
        self.bears -= 1

    async def abandon(self, ticket, reason):
        self.bears -= 1
        size = self.schedule.plan.envs_per_shard
        self.schedule.out.produced += size
        self.schedule.out.refused += size
        await self.broker.abandon(ticket, reason)


@dataclass
class Asking:
    """Requests bear the node of their shard."""

    schedule: Any
    shard: int
    life: Life = field(default_factory=Life)

    @asynccontextmanager
    async def rollout(self, shard):
        self.schedule.requests.begin(shard, self.life.generation)
        try:
            yield
        finally:
            if not self.life.dead:
                self.schedule.requests.end(shard, self.life.generation)

    async def act(self, request):
        own = replace(request, node=request.payload, generation=self.life.generation)
        return await asked_until_answered(own, self._act)

    async def _act(self, request):
        answer = asyncio.get_running_loop().create_future()
        self.schedule.requests.ask(request, partial(settle, answer))
        return await answer


class Recorder:
    def __init__(self, schedule, ticket):
        self._schedule, self._ticket, self._versions = schedule, ticket, []

    def append(self, output, answer):
        claimed, true, mode = answer
        assert (claimed, mode) == (true, "train")
        self._versions.append(claimed)

    async def complete(self, output):
        """Nothing comes late."""

    def build(self, output, answer):
        schedule, ticket, versions = self._schedule, self._ticket, self._versions
        assert min(versions) >= ticket.version, "an action is older than what was published at its start"
        assert (answer is None) == schedule.ends_early
        schedule.out.short += len(versions) < schedule.horizon
        if schedule.rng.random() < schedule.breaks:
            raise ShardFailure("numbers that are not finite", what="not finite")
        plan, lie = schedule.plan, schedule.rng.random() < schedule.lies
        oldest = ticket.batch - schedule.bound - 1 if lie else min(versions)
        schedule.out.produced += plan.envs_per_shard
        schedule.out.refused += plan.envs_per_shard * lie
        ages = {"oldest": oldest, "newest": max(versions)}
        return rollout(plan, ticket, decisions=schedule.horizon, payload=versions, **ages)


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
    life: Life = field(default_factory=Life)

    async def take(self):
        node, generation = self.schedule.node(self.rank), self.life.generation
        return await self._wait_for(self.schedule.requests.take(self.rank, node, generation))

    def answering(self, batch):
        def fail(numbers):
            if not self.life.dead:
                self.schedule.requests.fail(numbers, "the forward pass failed")

        return answering(batch, reply=self.schedule.requests.reply, fail=fail)


@dataclass
class Weights:
    schedule: Any
    rank: int
    life: Life = field(default_factory=Life)

    async def next(self):
        return await self.schedule.weights.next(self.rank, self.life.generation)

    async def applied(self, version):
        await self.schedule.nap("load", self.rank)
        self.schedule.weights.applied(self.rank, version, self.life.generation)


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
        out = self.schedule.out
        for piece in pieces:
            versions = piece.payload
            assert (piece.rank, piece.ticket.batch) == (self.rank, self.batch)
            assert min(versions) >= self.batch - self.schedule.bound, "an action is older than the bound"
            assert max(versions) <= self.batch, "an action was made by a policy that is not trained yet"
            out.trained[(self.batch, *piece.key, self.rank)] += 1
            out.collected[self.batch, piece.ticket.shard] += piece.size
            out.staleness[self.batch - min(versions)] += piece.size
            out.mixed += min(versions) < max(versions)
            out.backwards += versions != sorted(versions)

    def finish(self):
        return {}
