"""Predicts the bench's cells, from the service times that a scenario states and a few costs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import yaml

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan, choose_shards
from rlinf_async.lab.bench.modes import Mode
from rlinf_async.lab.bench.scenarios import Scenario
from rlinf_async.lab.emulated.service import EnvService, decisions, resets, slower
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.simulators import ShardWork, SimulatorBatch
from rlinf_async.lab.virtual.stock import Mode as StockMode
from rlinf_async.lab.virtual.stock import predict_stock
from rlinf_async.lab.virtual.times import (
    PolicyTimes,
    StockTimes,
    Times,
    TrainingTimes,
    WayTimes,
)
from rlinf_async.loops.run_settings import RunSettings

FIRST_SEED = 1000
"""Seed of the draws of a bench's first repetition; environments draw the same in every mode."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that the machinery costs besides the stated service times; see `lab.virtual.times`."""

    request_s: float
    request_env_s: float
    worker_s: float
    piece_s: float
    piece_env_s: float
    batch_s: float
    whole_s: float
    anchor_s: float
    decision_s: float
    decision_env_s: float
    trajectory_s: float
    step_s: float
    pipeline_step_s: float


GUESSED_COSTS = Costs(
    request_s=0.0041,
    request_env_s=0.00028,
    worker_s=0.0022,
    piece_s=0.004,
    piece_env_s=0.0003,
    batch_s=0.05,
    whole_s=0.1,
    anchor_s=0.01,
    decision_s=0.0142,
    decision_env_s=0.0003,
    trajectory_s=0.5,
    step_s=0.5,
    pipeline_step_s=0.5,
)
"""Costs before any measurement: those of requests by themselves (docs/performance.md), and guesses."""

FITTED_COSTS = Costs(
    request_s=0.0060,
    request_env_s=0.000186,
    worker_s=0.0022,
    piece_s=0.00281,
    piece_env_s=0.000296,
    batch_s=0.0476,
    whole_s=0.221,
    anchor_s=0.00459,
    decision_s=0.00573,
    decision_env_s=0.00003,
    trajectory_s=0.753,
    step_s=0.773,
    pipeline_step_s=0.744,
)
"""Costs that `fit` makes of `GUESSED_COSTS` by the eight measured cells of the scenario `balanced`, and by no
others.

But for `worker_s`, which hardly moves them: it is what the measured cell of `fast` leaves (`GUESSED_COSTS`
has it).
"""

STOCK_DRAWS = 3
"""Draws of RLinf's modes, of which the median counts: asynchronous PPO looks for trajectories once a
second, so that a tenth of a second may move it by half."""


@dataclass(frozen=True, kw_only=True)
class EmulatedSimulators:
    """The bench's emulated environments, without their sleep; fills `lab.virtual.simulators.Simulators`."""

    service: EnvService
    seed: int

    @property
    def vectorised(self) -> bool:
        return self.service.vectorised_s > 0

    def batch(self, first: int, size: int) -> SimulatorBatch:
        return _EmulatedBatch(self.service, range(first, first + size), self.seed)


class _EmulatedBatch:
    def __init__(self, service: EnvService, envs: range, seed: int) -> None:
        self._service, self._envs = service, envs
        self._slower = [1.0] * len(envs)
        self._decisions = [decisions(service, env, seed=seed) for env in envs]
        self._resets = [resets(service, env, seed=seed) for env in envs]

    def take_on(self, first: int) -> None:
        self._slower = slower(self._service, self._envs, first)

    def reset(self) -> ShardWork:
        if self._service.episode:
            return ShardWork(each=(0.0,))  # they are reset once, before the run
        if self._service.vectorised_s:
            return ShardWork(each=(self._service.reset_s,))
        return ShardWork(each=tuple(next(stream) for stream in self._resets))

    def step(self) -> ShardWork:
        drawn = [next(stream) for stream in self._decisions]
        if self._service.vectorised_s:
            return ShardWork(each=(self._service.vectorised_s,))
        return ShardWork(
            each=tuple(
                one.seconds * more + one.reset_s for one, more in zip(drawn, self._slower, strict=True)
            ),
            ends=any(one.ends for one in drawn),
            device_s=self._service.device_s * len(drawn),
        )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The global steps of a run that are measured."""

    warm_up: int
    measured: int
    batches: int
    """Global steps of the whole run."""


def modelled(scenario: Scenario, mode: Mode) -> bool:
    """Return True if a cell can be predicted: its service times are stated, and it is not RLinf's
    decoupled mode.
    """
    return scenario.env is not None and scenario.policy is not None and not mode.env_workers


def predict_cell(scenario: Scenario, mode: Mode, costs: Costs, steps: Steps) -> float:
    """Fresh environment steps per second in the measured steps of a run of a cell that is `modelled`."""
    draws = 1 if mode.kind == "plugin" else STOCK_DRAWS
    return statistics.median(_run(scenario, mode, costs, steps, FIRST_SEED + draw) for draw in range(draws))


def _run(scenario: Scenario, mode: Mode, costs: Costs, steps: Steps, seed: int) -> float:
    settings = settings_of(scenario, mode, steps.batches)
    times = times_of(scenario, costs, seed=seed)
    if mode.kind == "plugin":
        ends: tuple[float, ...] = predict(settings, times).trained_at
        fresh: tuple[int, ...] = (scenario.samples,) * steps.batches
    else:
        stages = 2 if "rollout.pipeline_stage_num=2" in mode.overrides else 1
        stock = predict_stock(settings, times, mode=_stock_mode(mode), stages=stages)
        ends, fresh = stock.trained_at, stock.fresh
    first, last = steps.warm_up, steps.warm_up + steps.measured
    return sum(fresh[first:last]) * scenario.chunk / (ends[last - 1] - ends[first - 1])


def _stock_mode(mode: Mode) -> StockMode:
    if mode.wiring == "async-ppo":
        return "async-ppo"
    return "pipeline" if "+runner.use_training_pipeline=true" in mode.overrides else "sync"


def times_of(scenario: Scenario, costs: Costs, *, seed: int) -> Times:
    """Return the times that `scenario` states, and the costs of the machinery."""
    env, policy = scenario.env, scenario.policy
    assert env is not None
    assert policy is not None
    return Times(
        simulators=EmulatedSimulators(service=env, seed=seed),
        policy=PolicyTimes(fixed_s=policy.act_fixed_s, env_s=policy.act_sample_s),
        training=TrainingTimes(
            sample_s=policy.train_sample_s,
            score_share=policy.score_share,
            anchor_s=costs.anchor_s,
            batch_s=costs.batch_s,
            whole_s=costs.whole_s,
            piece_s=costs.piece_s,
            piece_env_s=costs.piece_env_s,
        ),
        way=WayTimes(request_s=costs.request_s, request_env_s=costs.request_env_s, worker_s=costs.worker_s),
        stock=StockTimes(
            decision_s=costs.decision_s,
            decision_env_s=costs.decision_env_s,
            trajectory_s=costs.trajectory_s,
            step_s=costs.step_s,
            pipeline_step_s=costs.pipeline_step_s,
        ),
    )


def settings_of(scenario: Scenario, mode: Mode, batches: int) -> RunSettings:
    """A run of `scenario` in `mode`; of RLinf's own modes the sizes alone."""
    block: dict[str, Any] = {}
    for override in mode.shared_overrides(scenario):
        key, _, value = override.partition("=")
        if key.startswith("async."):
            _put(block, key.split(".")[1:], yaml.safe_load(value))
    asynchrony = AsyncConfig.from_mapping(block)
    one = ShardPlan(
        total_envs=scenario.envs,
        env_workers=scenario.env_workers,
        inference_ranks=1,
        learner_ranks=1,
        shards_per_worker=1,
    )
    shards = 1
    if asynchrony.rollout.enabled:
        shards = choose_shards(
            asked=None,
            simulator=scenario.simulator,
            stages=1,
            fits=one.fits,
            most=one.envs_per_shard,
            separate=scenario.simulator == "metaworld",
        )
    return RunSettings(
        asynchrony=asynchrony,
        plan=replace(one, shards_per_worker=shards),
        horizon=scenario.decisions,
        batches=batches,
        global_batch_size=scenario.samples // scenario.optimizer_steps,
        micro_batch_size=mode.micro_batch_size(scenario),
        update_epoch=scenario.update_epoch,
        max_batch_size=scenario.envs,
        normalizes=True,
        seed=0,
    )


def _put(block: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        block = block.setdefault(key, {})
    block[keys[-1]] = value
