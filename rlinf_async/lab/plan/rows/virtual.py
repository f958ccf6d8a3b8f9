"""A row as a run on virtual time."""

from __future__ import annotations

import math

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.plan.prediction import step_after_first
from rlinf_async.lab.plan.rows.costs import Costs
from rlinf_async.lab.plan.rows.row import Row
from rlinf_async.lab.virtual.simulators import DurationDraws, SimulatorTimes
from rlinf_async.lab.virtual.times import PolicyTimes, Times, TrainingTimes
from rlinf_async.loops.run_settings import RunSettings

DECISION_COUNT = 16
"""Decisions of a rollout that is planned; a real one has more of them, which are shorter."""
BATCH_COUNT = 4
"""Batches that are planned: nothing is drawn by chance, so that each after the first takes as long."""


def step_of(row: Row, costs: Costs) -> float:
    """Return the seconds of a step of a row.

    GPUs with the same part of the work do the same at the same time, so that a run on the fewest that have
    their ratio takes as long.
    """
    settings = _settings(row)
    return step_after_first(settings, _times(row, costs, settings), batches=BATCH_COUNT, draws=1)


def _unit(row: Row) -> int:
    """Return the times that the fewest GPUs of this ratio are in the run."""
    return math.gcd(*row.parts())


def _settings(row: Row) -> RunSettings:
    workers, ranks, learners = (count // _unit(row) for count in row.parts())
    # An environment of the plan stands for several.
    plan = ShardPlan(
        total_envs=math.lcm(workers * row.batches_hosted, learners),
        env_workers=workers,
        inference_ranks=ranks,
        learner_ranks=learners,
        shards_per_worker=row.batches_hosted,
        rollout_epochs=row.epochs,
    )
    return RunSettings(
        asynchrony=_asynchrony(row),
        plan=plan,
        horizon=DECISION_COUNT,
        batches=1,
        global_batch_size=plan.trajectories_per_batch * DECISION_COUNT,
        micro_batch_size=_micro_batch(row, plan) * DECISION_COUNT,
        update_epoch=1,
        # A pass is for one batch of environments: two that wait for each other would move in step.
        max_batch_size=plan.envs_per_shard,
        normalizes=False,
        seed=0,
    )


def _asynchrony(row: Row) -> AsyncConfig:
    levels = row.levels
    if row.overlap == "epochs":
        # Training overlaps its own step, as pieces come, and the next step begins with its weights.
        levels = {**levels, "train": False, "streamer": levels["train"] or levels["streamer"]}
    block = {name: {"enabled": on} for name, on in levels.items()}
    return AsyncConfig.from_mapping(
        {**block, "train": {**block["train"], "correction": "none"}, "advanced": {"accept_bias": True}}
    )


def _micro_batch(row: Row, plan: ShardPlan) -> int:
    """Return the rollouts that a learner rank takes at a time: a piece with level 3, else an epoch."""
    return plan.piece_size if row.levels["streamer"] else plan.total_envs // plan.learner_ranks


def _times(row: Row, costs: Costs, settings: RunSettings) -> Times:
    plan, share = settings.plan, row.simulator_share
    each = row.envs / _unit(row) / plan.total_envs
    shard = row.envs / (row.parts().simulators * row.batches_hosted)
    # A vectorised simulator takes as long for some of its environments as for all.
    stepped = shard * row.batches_hosted if row.simulator == "vectorised" else shard
    step_s = costs.decision_s(stepped) * share / DECISION_COUNT
    # The state that a rollout ends in is scored, too.
    pass_share = (1 - share) / (DECISION_COUNT + 1)
    return Times(
        simulators=SimulatorTimes(
            decision=DurationDraws(mean=step_s), vectorised=row.simulator == "vectorised"
        ),
        policy=PolicyTimes(
            fixed_s=costs.pass_s * pass_share,
            env_s=costs.env_s * each * pass_share,
        ),
        training=TrainingTimes(
            sample_s=costs.training_s(row) * plan.learner_ranks / settings.samples_per_batch,
            fetch_s=costs.channel_time(row) / settings.samples_per_batch,
        ),
    )
