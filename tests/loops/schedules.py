"""Adversarial schedules: the real loops and brokers between environments, ranks and learners of any speed.

Everything is drawn from a seed: sizes, levels, service times that differ by orders of magnitude between
shards and between ranks, weights that arrive very late at some of them, rollouts that lie about their age,
loops that end and start anew, env workers and inference ranks
that die in the middle of anything and are brought back, and calls of theirs that arrive when they are dead.
Answers carry the version that really made them beside the one that they claim.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from rlinf_async.config import SurviveConfig
from rlinf_async.core.buffer import Ledger
from rlinf_async.loops.barrier import BarrierQueues
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.loops.inference import refresh_weights, serve_policy
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.loops.weight_broker import WeightBroker
from tests.loops import mortal
from tests.loops import schedule_parts as parts
from tests.making import drawn_plan

QUANTUM_S = 1 / 64
BEFORE = Ledger(produced=70, trained=60, env_steps_trained=600, refused=Counter(stale=10))
"""The books of the run that is resumed."""


@dataclass
class Outcome:
    """What a run was, counted apart from the books that it keeps itself."""

    trained: Counter = field(default_factory=Counter)
    """(batch, epoch, place, part, rank): how often."""
    collected: Counter = field(default_factory=Counter)
    """(batch, shard): how many trajectories."""
    staleness: Counter = field(default_factory=Counter)
    produced: int = 0
    refused: int = 0
    mixed: int = 0
    """Pieces that several versions have made."""
    backwards: int = 0
    """Pieces with an action that is older than the one before: ranks load weights at different times."""
    evaluated: int = 0
    short: int = 0
    """Rollouts that have ended before the horizon."""
    left_out: int = 0
    """Environments that were in no request, as their episodes had ended."""
    restarts: Counter = field(default_factory=Counter)
    """Loops that were ended and started anew, and processes that have died, by kind."""
    abandoned: int = 0
    """Rollouts that were lost with their env worker."""


class Schedule:
    """One run, drawn from `seed`."""

    def __init__(self, seed):
        self.working = False
        self.seed, self.rng, self.out = seed, random.Random(seed), Outcome()
        draw = self.rng.choice
        self.bound, self.tasks = draw((0, 1, 1, 2, 3)), self.rng.random() < 0.3
        self.dynamic, self.streaming = self.rng.random() < 0.7, self.rng.random() < 0.5
        self.plan = drawn_plan(
            draw,
            total_envs=(4, 8, 12, 24),
            env_workers=(1, 2),
            inference_ranks=(1, 2, 3),
            learner_ranks=(1, 2, 3),
            shards_per_worker=(1, 2, 3, 4),
            rollout_epochs=(1, 2, 3),
        )
        self.first, self.batches = draw((0, 0, 5)), draw((3, 6, 9))
        self.horizon, self.evaluates = draw((1, 3, 6)), self.rng.random() < 0.4
        self.ends_early = self.rng.random() < 0.5
        self.nodes, self.lies = draw((1, 1, 2)), draw((0, 0, 0.03, 0.09))
        self._scales = {
            kind: [draw((0, 1, 1, 4, 30)) for _ in range(32)] for kind in ("env", "act", "load", "train")
        }
        self.restarts = self.rng.random() < 0.4
        self.breaks = draw((0, 0, 0.01, 0.1))
        """The chance of a reset or a step, or of a rollout's numbers, to fail."""
        self.deaths = not self.restarts and not self.evaluates and self.rng.random() < 0.8
        self.breaks *= not self.deaths  # what a dead process has given up would be counted by nobody

    def __str__(self):
        shown = (
            "seed",
            "bound",
            "tasks",
            "dynamic",
            "streaming",
            "first",
            "batches",
            "horizon",
            "evaluates",
        )
        shown += ("restarts", "breaks", "deaths", "ends_early")
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown) + f", {self.plan}"

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
            any_place=self.tasks,
            until=until,
            version=self.first,
            ledger=ledger,
        )
        self.weights = WeightBroker(ranks=self.plan.inference_ranks, on_published=self.broker.publish)
        self.requests = self._requests()
        serve = partial(mortal.inference_rank, self) if self.deaths else self._serve
        served = [
            asyncio.create_task(loop) for rank in range(self.plan.inference_ranks) for loop in serve(rank)
        ]
        self._offer(self.first)
        await self.weights.published(self.first)
        self.working = True
        if self.deaths:
            collecting = [mortal.env_worker(self, worker) for worker in range(self.plan.env_workers)]
        else:
            collecting = [self._collect(shard) for shard in range(self.plan.shards)]
        shards = [asyncio.create_task(loop) for loop in collecting]
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
            return RequestBroker(BarrierQueues(self.plan, deadline_s=float("inf")))
        most = max(self.plan.envs_per_shard, self.rng.choice((1, self.plan.total_envs)))
        return RequestBroker(SharedQueues(max_size=most, max_wait=0, deadline_s=float("inf")))

    def _serve(self, rank):
        policy, requests = parts.Policy(self, rank), parts.Requests(self, rank)
        weights = parts.Weights(self, rank)
        yield self._again("inference", requests, lambda: serve_policy(requests=requests, policy=policy))
        yield self._again("weights", None, lambda: refresh_weights(weights=weights, policy=policy))

    async def _again(self, kind, port, loop):
        """Run the loop that `loop` makes; end it now and then, and start another in its place.

        One that bears a rollout or a batch is left alone, as what it has taken would be lost: it is ended
        only while it waits for `port`. The weights of a rank may be in any state, as it asks again.
        """
        task = asyncio.create_task(loop())
        for _ in range(6 * self.restarts):
            await asyncio.wait({task}, timeout=self.rng.randint(1, 400) * QUANTUM_S)
            if not task.done() and (port is None or port.waits):
                task.cancel()
                await asyncio.wait({task})
                self.out.restarts[kind] += 1
                await self.nap("load", self.rng.randrange(32))  # the new one comes when it comes
                task = asyncio.create_task(loop())
        await task

    def _offer(self, version):
        self.weights.offer(version, ("the weights of", version))

    def _collect(self, shard):
        trajectories = parts.Trajectories(self, self.broker)
        restarts = self._restarts_of(shard)
        return self._again(
            "env",
            trajectories,
            lambda: run_shard(
                shard=shard,
                env=parts.Env(self, shard, self.plan.envs_per_shard, self.horizon),
                policy=parts.Asking(self, shard),
                trajectories=trajectories,
                recorder=lambda ticket: parts.Recorder(self, ticket),
                restarts=restarts,
                overlaps=self.dynamic,
            ),
        )

    def _restarts_of(self, shard):
        return ShardRestarts(shard, SurviveConfig(env_restarts=10**6), worked=True)

    def _evaluate(self, shard):
        env = parts.Env(self, shard, 1, 2)
        number = self.plan.shards + shard
        return evaluate_shard(
            shard=number,
            env=env,
            policy=parts.Asking(self, shard),
            rollouts=1,
            restarts=self._restarts_of(number),
        )

    def _learn(self, rank, batch):
        async def compute(work, *arguments):
            await self.nap("train", rank)
            return work(*arguments)

        learner, pieces = parts.Learner(self, rank), parts.Pieces(self, rank)
        return learn_batch(
            batch=batch, pieces=pieces, learner=learner, streaming=self.streaming, compute=compute
        )
