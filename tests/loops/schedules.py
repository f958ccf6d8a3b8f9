"""Adversarial schedules: the real loops and brokers between environments, ranks and learners of any speed.

Everything is drawn from a seed: sizes, levels, service times that differ by orders of magnitude between
shards and between ranks, weights that arrive very late at some of them, rollouts that lie about their age.
Answers carry the version that really made them beside the one that they claim.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece
from rlinf_async.loops.env import evaluate_shard, run_shard
from rlinf_async.loops.inference import refresh_weights, serve_policy
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.loops.weight_broker import WeightBroker

QUANTUM_S = 1 / 64
BEFORE = Ledger(produced=70, trained=60, env_steps_trained=600, refused=Counter(stale=10))
"""The books of the run that is resumed."""


@dataclass
class Outcome:
    """What a run was, counted apart from the books that it keeps itself."""

    trained: Counter = field(default_factory=Counter)
    """(batch, epoch, place, part, rank): how often."""
    staleness: Counter = field(default_factory=Counter)
    produced: int = 0
    refused: int = 0
    mixed: int = 0
    """Pieces that several versions have made."""
    backwards: int = 0
    """Pieces with an action that is older than the one before: ranks load weights at different times."""
    evaluated: int = 0


class Schedule:
    """One run, drawn from `seed`."""

    def __init__(self, seed):
        self.seed, self.rng, self.out = seed, random.Random(seed), Outcome()
        draw = self.rng.choice
        self.bound, self.free = draw((0, 1, 1, 2, 3)), self.rng.random() < 0.3
        self.dynamic, self.streaming = self.rng.random() < 0.7, self.rng.random() < 0.5
        self.plan = self._plan()
        self.first, self.batches = draw((0, 0, 5)), draw((3, 6, 9))
        self.horizon, self.evaluates = draw((1, 3, 6)), self.rng.random() < 0.4
        self.nodes, self.lies = draw((1, 1, 2)), draw((0, 0, 0.03, 0.09))
        self._scales = {
            kind: [draw((0, 1, 1, 4, 30)) for _ in range(32)] for kind in ("env", "act", "load", "train")
        }

    def __str__(self):
        shown = ("seed", "bound", "free", "dynamic", "streaming", "first", "batches", "horizon", "evaluates")
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown) + f", {self.plan}"

    def _plan(self):
        draw = self.rng.choice
        while True:
            try:
                return ShardPlan(
                    total_envs=draw((4, 8, 12, 24)),
                    env_workers=draw((1, 2)),
                    inference_ranks=draw((1, 2, 3)),
                    learner_ranks=draw((1, 2, 3)),
                    shards_per_worker=draw((1, 2, 3, 4)),
                    rollout_epochs=draw((1, 2, 3)),
                )
            except ValueError:
                continue  # sizes that do not divide

    def node(self, index):
        return f"node {index % self.nodes}"

    async def nap(self, kind, who):
        """However long `who` takes for this today: now and then fifty times as long."""
        duration = self.rng.randint(0, 4) * self._scales[kind][who % 32] * QUANTUM_S
        duration *= 50 if self.rng.random() < 0.02 else 1
        if duration:
            await asyncio.sleep(duration)

    async def run(self):
        """Raises AssertionError where something is untrue, and whatever a loop raises; the `Outcome`."""
        until = self.first + self.batches
        ledger = None
        if self.first:
            ledger = Ledger(**{**vars(BEFORE), "refused": BEFORE.refused.copy()})
        self.broker = TrajectoryBroker(
            self.plan,
            max_staleness=self.bound,
            free=self.free,
            until=until,
            version=self.first,
            ledger=ledger,
        )
        self.weights = WeightBroker(ranks=self.plan.inference_ranks, on_published=self.broker.publish)
        self.requests = self._requests()
        served = [
            asyncio.create_task(loop)
            for rank in range(self.plan.inference_ranks)
            for loop in self._serve(rank)
        ]
        self._offer(self.first)
        await self.weights.published(self.first)
        shards = [asyncio.create_task(self._collect(shard)) for shard in range(self.plan.shards)]
        for batch in range(self.first, until):
            await asyncio.gather(*(self._learn(rank, batch) for rank in range(self.plan.learner_ranks)))
            self._offer(batch + 1)
            if self.evaluates and self.rng.random() < 0.3:
                await self.weights.published(batch + 1)
                await asyncio.gather(*(self._evaluate(shard) for shard in range(self.plan.shards)))
        await self.weights.published(until)
        await asyncio.gather(*shards)
        self.requests.close()
        self.weights.close()
        await asyncio.gather(*served)
        return self.out

    def _requests(self):
        if not self.dynamic:
            return RequestBroker.barrier(self.plan, deadline_s=float("inf"))
        most = max(self.plan.envs_per_shard, self.rng.choice((1, self.plan.total_envs)))
        return RequestBroker.dynamic(max_size=most, max_wait=0, deadline_s=float("inf"))

    def _serve(self, rank):
        policy = _Policy(self, rank)
        yield serve_policy(requests=_Requests(self, rank), policy=policy)
        yield refresh_weights(weights=_Weights(self, rank), policy=policy)

    def _offer(self, version):
        self.weights.offer(version, ("the weights of", version))

    def _collect(self, shard):
        return run_shard(
            shard=shard,
            env=_Env(self, shard, self.plan.envs_per_shard, self.horizon),
            policy=_Asking(self, shard),
            trajectories=self.broker,
            recorder=lambda ticket: _Recorder(self, ticket),
        )

    def _evaluate(self, shard):
        env = _Env(self, shard, 1, 2)
        return evaluate_shard(
            shard=self.plan.shards + shard, env=env, policy=_Asking(self, shard), rollouts=1
        )

    def _learn(self, rank, batch):
        async def compute(work, *arguments):
            await self.nap("train", rank)
            return work(*arguments)

        learner, pieces = _Learner(self, rank), _Pieces(self, rank)
        return learn_batch(
            batch=batch, pieces=pieces, learner=learner, streaming=self.streaming, compute=compute
        )


@dataclass
class _Env:
    schedule: Schedule
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


@dataclass
class _Asking:
    """Requests bear the node of their shard."""

    schedule: Schedule
    shard: int

    def rollout(self, shard):
        return self.schedule.requests.rollout(shard)

    async def act(self, request):
        return await self.schedule.requests.act(replace(request, node=request.payload))


class _Recorder:
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


class _Policy:
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
            assert self.version is None or version > self.version
            self.version = version


@dataclass
class _Requests:
    schedule: Schedule
    rank: int

    async def take(self):
        return await self.schedule.requests.take(self.rank, self.schedule.node(self.rank))

    def answering(self, batch):
        return self.schedule.requests.answering(batch)


@dataclass
class _Weights:
    schedule: Schedule
    rank: int

    async def next(self):
        return await self.schedule.weights.next(self.rank)

    async def applied(self, version):
        await self.schedule.nap("load", self.rank)
        self.schedule.weights.applied(self.rank, version)


@dataclass
class _Pieces:
    schedule: Schedule
    rank: int

    async def take(self, batch, *, whole):
        return await self.schedule.broker.take(self.rank, batch, whole=whole)


@dataclass
class _Learner:
    schedule: Schedule
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
