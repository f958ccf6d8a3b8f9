"""RLinf's own modes on virtual time, for comparison: the waits of its workers and runners.

Theory of operation. An env worker of RLinf steps its stages one after the other, and each in answer to its
inference rank; an inference rank answers the stages in turn, each once all of its env workers have asked.
The synchronous runner trains when all trajectories have arrived, and environments reset meanwhile; with its
training pipeline it trains on a rollout epoch while the next one goes on. Asynchronous PPO lets rollouts
go on all the time; its learner looks once a second whether there is a trajectory, trains on the newest, again
and again until it is too old, and drops those that come too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.virtual.simulators import ShardWork, SimulatorBatch
from rlinf_async.lab.virtual.times import Times
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.virtual_clock import run

POLL_S = 1.0
"""Seconds that the learner of asynchronous PPO sleeps before it looks again for a trajectory."""

Mode = Literal["sync", "pipeline", "async-ppo"]


@dataclass(frozen=True, kw_only=True)
class StockRun:
    """The prediction of a run in one of RLinf's modes."""

    trained_at: tuple[float, ...]
    """Virtual seconds at which the training of each global step ends."""
    fresh: tuple[int, ...]
    """Samples that each step trained on for the first time."""


def predict_stock(
    settings: RunSettings,
    times: Times,
    *,
    mode: Mode = "sync",
    stages: int = 1,
    overlaps_resets: bool = True,
    max_staleness: int = 1,
) -> StockRun:
    """`settings.batches` global steps in RLinf's own `mode`; of the plan, workers, ranks and totals count.

    Args:
        stages: `rollout.pipeline_stage_num`.
        overlaps_resets: `runner.overlap_env_bootstrap`; asynchronous PPO has no such thing.
        max_staleness: `algorithm.staleness_threshold` of asynchronous PPO.

    Raises:
        ValueError: environments that do not divide into workers, stages and ranks.
    """
    plan = settings.plan
    split = ShardPlan(
        total_envs=plan.total_envs,
        env_workers=plan.env_workers,
        inference_ranks=plan.inference_ranks,
        learner_ranks=plan.learner_ranks,
        shards_per_worker=stages,
        rollout_epochs=plan.rollout_epochs,
        group_size=plan.group_size,
    )
    stock = _Stock(settings, times, split)
    if mode == "async-ppo":
        return run(stock.asynchronous(max_staleness))
    return run(stock.synchronous(pipeline=mode == "pipeline", overlaps_resets=overlaps_resets))


@dataclass
class _Stage:
    """A stage of an env worker: its environments, and the way between it and its inference rank."""

    batch: SimulatorBatch
    asked: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    answers: asyncio.Queue[None] = field(default_factory=asyncio.Queue)


class _Stock:
    """One run."""

    def __init__(self, settings: RunSettings, times: Times, split: ShardPlan) -> None:
        self._settings, self._times, self._split = settings, times, split
        self._size = split.envs_per_shard

    def _stages(self) -> list[list[_Stage]]:
        """By env worker."""
        return [
            [
                _Stage(self._times.simulators.batch(shard * self._size, self._size))
                for shard in self._split.shards_of_worker(worker)
            ]
            for worker in range(self._split.env_workers)
        ]

    @property
    def _way_s(self) -> float:
        return self._times.stock.decision_s + self._size * self._times.stock.decision_env_s

    @property
    def _training_s(self) -> float:
        """Return the seconds of one global batch, on each of the ranks at once."""
        settings, times = self._settings, self._times.training
        ranks = self._split.learner_ranks
        samples = settings.update_epoch * settings.samples_per_batch / ranks
        steps = settings.update_epoch * settings.optimizer_steps
        passes = samples / settings.micro_batch_size * times.micro_batch_s
        return samples * times.sample_s + passes + steps * times.step_s(ranks)

    @property
    def _central_s(self) -> float:
        return self._settings.samples_per_batch * self._times.way.central_env_step_s

    async def _reset(self, worker: Sequence[_Stage]) -> None:
        for stage in worker:
            await asyncio.sleep(max(stage.batch.reset().each))
            stage.asked.put_nowait(False)

    async def _env(self, worker: Sequence[_Stage]) -> None:
        """One rollout of an env worker whose environments are reset."""
        for _ in range(self._settings.horizon):
            for stage in worker:
                await stage.answers.get()
                stint: ShardWork = stage.batch.step()
                await asyncio.sleep(max(stint.each) + stint.device_s)
                stage.asked.put_nowait(stint.ends)
        for stage in worker:
            await stage.answers.get()

    async def _rank(self, workers: Sequence[Sequence[_Stage]]) -> None:
        """The answers to one rollout of these env workers."""
        policy = self._times.policy
        for _ in range(self._settings.horizon + 1):
            for stages in zip(*workers, strict=True):
                ends = [await stage.asked.get() for stage in stages]
                size = len(stages) * self._size
                final = policy.forward_s(size) if any(ends) else 0.0
                await asyncio.sleep(self._way_s + policy.forward_s(size) + final)
                for stage in stages:
                    stage.answers.put_nowait(None)

    async def _rollout(self, stages: Sequence[Sequence[_Stage]]) -> None:
        ranks = self._split.inference_ranks
        served = [
            [w for index, w in enumerate(stages) if index * ranks // len(stages) == rank]
            for rank in range(ranks)
        ]
        await asyncio.gather(*map(self._env, stages), *(self._rank(workers) for workers in served if workers))

    async def synchronous(self, *, pipeline: bool, overlaps_resets: bool) -> StockRun:
        stages, epochs = self._stages(), self._split.rollout_epochs
        costs = self._times.stock
        overhead_s = costs.pipeline_step_s if pipeline else costs.trajectory_s + costs.step_s
        trained_at: list[float] = []
        reset: asyncio.Future[list[None]] | None = None
        for _ in range(self._settings.batches):
            training: asyncio.Task[None] | None = None
            for _epoch in range(epochs):
                await (reset or asyncio.gather(*map(self._reset, stages)))
                reset = None
                await self._rollout(stages)
                if pipeline:
                    training = asyncio.create_task(self._train_after(training, 1 / epochs))
            if overlaps_resets:
                reset = asyncio.gather(*map(self._reset, stages))
            await (training or self._train_after(None, 1.0))
            await asyncio.sleep(overhead_s)
            trained_at.append(asyncio.get_running_loop().time())
        if reset is not None:
            await reset
        return StockRun(
            trained_at=tuple(trained_at), fresh=(self._settings.samples_per_batch,) * len(trained_at)
        )

    async def _train_after(self, before: asyncio.Task[None] | None, share: float) -> None:
        if before is not None:
            await before
        await asyncio.sleep(share * (self._training_s + self._central_s))

    async def asynchronous(self, max_staleness: int) -> StockRun:
        """Asynchronous PPO with a store of one trajectory from every env worker, as its batch needs."""
        learner = _AsyncPPO(max_staleness, self._settings.samples_per_batch)
        rollouts = asyncio.create_task(self._collect_for(learner))
        trained_at: list[float] = []
        for _ in range(self._settings.batches):
            await learner.choose()
            await asyncio.sleep(self._training_s)
            trained_at.append(asyncio.get_running_loop().time())
            learner.version += 1
            await asyncio.sleep(self._times.stock.step_s + self._central_s)
        rollouts.cancel()
        with suppress(asyncio.CancelledError):
            await rollouts
        return StockRun(trained_at=tuple(trained_at), fresh=tuple(learner.fresh))

    async def _collect_for(self, learner: _AsyncPPO) -> None:
        stages = self._stages()
        while True:
            oldest = learner.version
            for _ in range(self._split.rollout_epochs):
                await asyncio.gather(*map(self._reset, stages))
                oldest = min(oldest, learner.version)
                await self._rollout(stages)
            await asyncio.sleep(self._times.stock.trajectory_s)
            learner.arrive(oldest)


class _AsyncPPO:
    """The trajectories that the learner of asynchronous PPO trains on, by their oldest versions."""

    def __init__(self, max_staleness: int, samples: int) -> None:
        self._max_staleness, self._samples = max_staleness, samples
        self.version = 0
        self.fresh: list[int] = []
        self._arrived: list[int] = []
        self._kept: int | None = None
        self._used = False

    def arrive(self, oldest: int) -> None:
        """A trajectory has been collected; too old, it is dropped at once."""
        if oldest >= self.version - self._max_staleness:
            self._arrived.append(oldest)

    async def choose(self) -> None:
        """Wait for a trajectory that is not too old, and take the newest, perhaps once more."""
        least = self.version - self._max_staleness
        while True:
            for oldest in self._arrived:
                if oldest >= least and (self._kept is None or oldest >= self._kept):
                    self._kept, self._used = oldest, False
            self._arrived.clear()
            if self._kept is not None and self._kept >= least:
                self.fresh.append(0 if self._used else self._samples)
                self._used = True
                return
            self._kept = None
            await asyncio.sleep(POLL_S)
