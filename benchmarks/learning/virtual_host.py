"""The local host on a virtual clock: real simulators, policies and loops, with given durations of their work.

The run never waits in real time, and speeds are part of the setting, not of the machine: two runs of the same
setting are equal, bit for bit, whatever else the machine does. Envs, inference and learner work at the same
(virtual) time, as in a run with an accelerator and separate simulators.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlinf_async.core.objectives import valid_steps
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.answers import Answer
from rlinf_async.hosts.local.inference import InferenceRank, State
from rlinf_async.hosts.local.learner import local_learner
from rlinf_async.hosts.local.policy import PolicyFactory
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.shard import EnvFactory, Shard
from rlinf_async.hosts.local.trainer import LocalResult, LocalRun
from rlinf_async.hosts.workers.shard import ShardOutput
from rlinf_async.lab.virtual.clock import run
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.ports import PiecePort
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.loops.trajectory_broker import RankPieces
from rlinf_async.observe.meters import BusyMeter

LearnerOf = Callable[[LocalSettings, Any, BusyMeter], StreamingLearner]
"""A function that makes the learner of a run."""


@dataclass(frozen=True, kw_only=True)
class ServiceTimes:
    """Virtual seconds of each kind of work."""

    slowest_decision: float
    """Seconds of one decision of the slowest shard."""
    speeds: tuple[tuple[float, float], ...]
    """For each task, the decision times of its fastest and slowest shard, as shares of `slowest_decision`."""
    jitter: float
    """Largest deviation of a rollout's speed from the usual speed of its shard, as a share."""
    inference: float
    """Seconds of one forward pass."""
    sample: float
    """Seconds to train one sample for one epoch; the first epoch includes the pass for the anchor."""

    def decision(self, shard: int, shards: int) -> float:
        """Return the seconds of one shard's decision; within a task, speeds are spread evenly."""
        per_task = shards / len(self.speeds)
        task = int(shard // per_task)
        fast, slow = self.speeds[task]
        place = (shard - task * per_task) / max(per_task - 1, 1)
        return self.slowest_decision * (fast + place * (slow - fast))


@dataclass
class BatchSeen:
    """The composition of a batch, from the pieces that the learner received."""

    solved: dict[int, list[bool]] = field(default_factory=lambda: defaultdict(list))
    """For each environment, a flag per episode: True if it was solved."""
    lag: list[float] = field(default_factory=list)
    """For each piece, the mean number of policy versions between a valid decision and its training."""
    weight: list[int] = field(default_factory=list)
    """For each piece, the number of its valid decisions."""
    seconds: float = 0.0
    """Virtual time at the end of the batch."""

    @property
    def mean_lag(self) -> float:
        return float(np.average(self.lag, weights=self.weight))


class TimedShard:
    """A shard with decisions in virtual time; a `loops.ports.ShardEnv` and a `loops.ports.TaskTaker`.

    `decisions` has the seconds of a decision for the tasks of each shard. The shard begins with its own
    tasks, and may take on those of another.
    """

    def __init__(
        self, shard: Shard, number: int, *, decisions: Sequence[float], jitter: float, seed: tuple[int, int]
    ) -> None:
        self._shard, self._decisions, self._jitter = shard, decisions, jitter
        self._decision = decisions[number]
        self._chance = np.random.default_rng(seed)
        self._pace = 1.0
        self.horizon = shard.horizon

    def take_on(self, place: int, rollout: int) -> None:
        self._decision = self._decisions[place]
        self._shard.take_on(place, rollout)

    def stand_at(self, place: int, rollout: int) -> None:
        self._shard.stand_at(place, rollout)

    @property
    def env(self) -> Any:
        """The environments of the shard."""
        return self._shard.env

    async def start(self) -> ShardOutput:
        self._pace = 1 + self._jitter * self._chance.uniform(-1, 1)
        return await self._lasting(self._shard.start())

    async def step(self, answer: Answer) -> ShardOutput:
        return await self._lasting(self._shard.step(answer))

    def waiting(self, output: ShardOutput) -> int:
        return self._shard.waiting(output)

    def observation(self, output: ShardOutput) -> Any:
        return self._shard.observation(output)

    async def finish(self) -> None:
        await self._shard.finish()

    async def restart(self) -> None:
        await self._shard.restart()

    async def _lasting(self, work: Any) -> ShardOutput:
        output: ShardOutput = await work
        await asyncio.sleep(self._decision * self._pace)
        return output


class TimedRank:
    """An inference rank with forward passes in virtual time."""

    def __init__(self, rank: InferenceRank, seconds: float) -> None:
        self._rank, self._seconds = rank, seconds

    async def act(self, batch: Sequence[Pending]) -> list[Answer]:
        answers = await self._rank.act(batch)
        await asyncio.sleep(self._seconds)
        return answers

    async def load(self, version: int, data: State) -> None:
        await self._rank.load(version, data)


class TimedLearner:
    """The learner in the run's own event loop, in place of `LearnerThread`; training takes virtual time."""

    def __init__(self, learner: StreamingLearner, settings: LocalSettings, sample_seconds: float) -> None:
        self._learner, self._settings, self._sample_seconds = learner, settings, sample_seconds
        self.seen: dict[int, BatchSeen] = defaultdict(BatchSeen)

    async def train(self, batch: int, pieces: PiecePort) -> dict[str, float]:
        """Train global batch `batch` and return its metrics."""
        metrics = await learn_batch(
            batch=batch,
            pieces=pieces,
            learner=self._learner,
            streaming=self._settings.run.streams,
            compute=self._lasting,
        )
        self.seen[batch].seconds = asyncio.get_running_loop().time()
        return metrics

    async def _lasting(self, work: Callable[..., Any], *arguments: Any) -> Any:
        result = work(*arguments)
        samples = 0
        if work == self._learner.accept:
            samples = sum(piece.size for piece in arguments[0]) * self._settings.horizon
            self._see(arguments[0])
        elif work == self._learner.finish:
            samples = self._settings.run.samples_per_batch * (self._settings.update_epoch - 1)
        await asyncio.sleep(samples * self._sample_seconds)
        return result

    def _see(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            seen = self.seen[piece.ticket.batch]
            payload: Mapping[str, torch.Tensor] = piece.payload
            valid = valid_steps(payload["ended"])
            tasks_of = piece.ticket.place if self._settings.asynchrony.takes_tasks else piece.ticket.shard
            first = tasks_of * self._settings.plan.envs_per_shard + piece.part * piece.size
            for index, solved in enumerate(payload["ended"].any(dim=0).tolist()):
                seen.solved[first + index].append(solved)
            seen.lag.append(float((piece.ticket.batch - payload["versions"])[valid].float().mean()))
            seen.weight.append(int(valid.sum()))


class SelfScoring(LocalRun):
    """A run with a learner that scores every batch by itself, as in the runs of the stored results."""

    @cached_property
    def _pieces(self) -> PiecePort:
        return RankPieces(self._trajectories, 0)


@dataclass(frozen=True)
class VirtualResult:
    """The result of a run, and the composition of each of its batches."""

    local: LocalResult
    batches: tuple[BatchSeen, ...]


def train(
    settings: LocalSettings,
    environments: EnvFactory,
    times: ServiceTimes,
    weights: State,
    *,
    policy: PolicyFactory,
    learner_of: LearnerOf = local_learner,
) -> VirtualResult:
    """Train all batches, starting from `weights`, on the virtual clock.

    Raises:
        ValueError: `balance` is `auto`, which is for a host to decide.
    """
    asynchrony = settings.asynchrony
    if asynchrony.rollout.enabled and asynchrony.advanced.balance == "auto":
        raise ValueError("async.advanced.balance=auto must be exact or tasks here: no host decides")
    plan, busy = settings.plan, BusyMeter(width=settings.plan.shards)
    with ExitStack() as stack:
        shards = [
            stack.enter_context(closing(Shard(number, settings=settings, build=environments, busy=busy)))
            for number in range(plan.shards)
        ]
        model = policy(**shards[0].sizes)
        model.load_state_dict(weights)
        rank = stack.enter_context(closing(InferenceRank(0, model=model, busy=BusyMeter())))
        learner = TimedLearner(learner_of(settings, model, BusyMeter()), settings, times.sample)
        loops: Any = {
            "shards": _timed(shards, plan, times, settings.seed),
            "ranks": [TimedRank(rank, times.inference)],
            "learner": learner,
        }
        local = run(SelfScoring(settings, **loops, model=model, busy={}, on_step=lambda *_: None).train())
    return VirtualResult(local, tuple(learner.seen[batch] for batch in range(settings.batches)))


def _timed(shards: Sequence[Shard], plan: ShardPlan, times: ServiceTimes, seed: int) -> list[TimedShard]:
    decisions = [times.decision(number, plan.shards) for number in range(plan.shards)]
    return [
        TimedShard(
            shard,
            number,
            decisions=decisions,
            jitter=times.jitter,
            seed=(seed, number),
        )
        for number, shard in enumerate(shards)
    ]
