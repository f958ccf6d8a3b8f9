"""Facts that follow from the sizes of a run, whatever a framework calls them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.simulators import hold_one_environment
from rlinf_async.loops.run_settings import RunSettings


class Evaluation:
    """The environments that a run is evaluated in, split into as many shards as those for training."""

    def __init__(self, section: Mapping[str, Any] | None) -> None:
        """`section` is `env.eval`; None for a run that is not evaluated."""
        self._section = section or {}
        self.total = int(self._section.get("total_num_envs") or 0)
        self._group = int(self._section.get("group_size") or 1)

    def fits(self, shards: int) -> bool:
        """Return True if the environments, if there are any, divide into `shards` shards in all."""
        return self.total % (shards * self._group) == 0

    def of_shard(self, plan: ShardPlan) -> int:
        """Environments in one shard; 0 in a run that is not evaluated."""
        return self.total // plan.shards

    def misfits(self, settings: RunSettings) -> Iterator[Reason]:
        """Why the environments cannot be split as `settings` say, with the nearest number that can."""
        shards, total, most = settings.plan.shards, self.total, settings.max_batch_size
        if total and hold_one_environment(self._section) and total != shards:
            yield Reason(
                f"env.eval.total_num_envs={total}: {self._section['env_type']} simulates one environment at "
                f"a time on the CPU; use {shards}, one for each shard",
                f"env.eval.total_num_envs={shards}",
            )
        elif not self.fits(shards):
            nearest = max(1, round(total / (shards * self._group))) * shards * self._group
            yield Reason(
                f"env.eval.total_num_envs={total} does not divide into {shards} shards of groups of "
                f"{self._group}; nearest: {nearest}",
                f"env.eval.total_num_envs={nearest}",
            )
        if settings.asynchrony.rollout.enabled and total // shards > most:
            yield Reason(
                f"a shard of {total // shards} evaluation environments exceeds max_batch_size={most}; set "
                f"async.rollout.max_batch_size to at least {total // shards}",
                f"async.rollout.max_batch_size={total // shards}",
            )


def fair_share(plan: ShardPlan, evaluation: Evaluation) -> int:
    """An inference rank's share of the environments, but at least the largest request."""
    return max(
        plan.envs_per_shard, math.ceil(plan.total_envs / plan.inference_ranks), evaluation.of_shard(plan)
    )


def split_requests(settings: RunSettings) -> Iterator[Reason]:
    """Yield a reason if a dynamic batch would be smaller than a request."""
    most, shard = settings.max_batch_size, settings.plan.envs_per_shard
    if settings.asynchrony.rollout.enabled and most < shard:
        yield Reason(
            f"async.rollout.max_batch_size={most} is smaller than a shard of {shard} environments; a request "
            f"is never split: use at least {shard}, or more shards"
        )
