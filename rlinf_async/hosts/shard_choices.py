"""The numbers of shards that a run may take after its first steps, or goes on with; see `core.shard_fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan, simulators_apart
from rlinf_async.hosts.simulators import Evaluation
from rlinf_async.loops.run_settings import RunSettings

AnySettings = TypeVar("AnySettings", bound=RunSettings)


def shard_choices(
    plan: ShardPlan,
    train: Mapping[str, Any],
    asynchrony: AsyncConfig,
    *,
    stages: int,
    evaluation: Evaluation,
    most: int,
) -> tuple[int, ...]:
    """Return the numbers of shards per env worker that a run may take after its first steps; see
    `core.shard_fit`.

    Every inference rank keeps two shards, so that one steps while another is answered.

    Args:
        plan: the plan with which the run begins.
        stages: as for `divide`.
        most: environments in a forward pass at most, which bounds a shard.
    """
    asked = asynchrony.advanced.fit_shards
    wanted = (asynchrony.rollout.shards == "auto" and stages == 1) if asked == "auto" else asked
    if not (wanted and asynchrony.rollout.enabled and simulators_apart(train)):
        return ()
    present = plan.shards_per_worker

    def fits(shards: int) -> bool:
        if present % shards or not plan.fits(shards) or not evaluation.fits(shards * plan.env_workers):
            return False
        total = shards * plan.env_workers
        largest = max(plan.total_envs, evaluation.total) // total
        return total >= 2 * plan.inference_ranks and largest <= most

    return tuple(shards for shards in range(2, present) if fits(shards))


def going_on(settings: AnySettings, saved: Mapping[str, Any] | None) -> AnySettings:
    """Return the settings of a run that goes on from a checkpoint: it has the shards of the run before,
    unless the config asks for another number.

    Args:
        saved: the plan of the run that wrote the checkpoint, as plain data; None if it is unknown.
    """
    going, own = replace(settings, shard_choices=()), settings.plan
    try:
        plan = ShardPlan(**(saved or {}))
        same = replace(plan, shards_per_worker=own.shards_per_worker, kept_piece=own.kept_piece) == own
    except (TypeError, ValueError):
        return going
    may_differ = bool(settings.shard_choices) or plan.shards_per_worker == own.shards_per_worker
    return replace(going, plan=plan) if may_differ and same else going
