"""The simulators of an `env` section, and their division into shards.

Also: checks of the sizes of a run that are the same for all frameworks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlinf_async.config import RolloutConfig
from rlinf_async.core.sharding import (
    ShardPlan,
    Splitting,
    nearest_multiple,
    one_batch,
    splitting,
)
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.loops.run_settings import RunSettings

AUTO_SHARDS = 2
"""Shards per env worker where simulators share its process: one steps while the other is answered."""
MOST_SHARDS = 64
"""Shards per env worker at most, where every simulator has a process of its own."""
USUAL_WORK_S = 0.003
"""Seconds of an env worker's interpreter for a decision of a shard, as measured on two cores in company."""
CPU_BACKENDS = frozenset({"cpu", "physx_cpu"})
"""ManiSkill's values of `init_params.sim_backend` for physics on the CPU."""


def hold_one_environment(train: Mapping[str, Any]) -> bool:
    """Return True if each simulator of an `env` section holds one environment, so that each is its own shard.

    ManiSkill batches environments on a GPU only; on the CPU it refuses a second one in a simulator.
    """
    backend = str((train.get("init_params") or {}).get("sim_backend", ""))
    return train["env_type"] == "maniskill" and backend in CPU_BACKENDS


def shards_of_one(train: Mapping[str, Any], *, environments: int, shards: int | None) -> int:
    """Return the shards of an env worker with one environment per simulator: one per environment.

    Args:
        environments: the number of environments of an env worker.
        shards: `async.rollout.shards`, or None for auto.

    Raises:
        ValueError: a setting puts several environments into a simulator; the message has a valid setting.
    """
    why = f"{train['env_type']} simulates one environment at a time on the CPU"
    group = int(train.get("group_size") or 1)
    if group > 1:
        raise ValueError(
            f"env.train.group_size={group}: {why}, and the members of a group share a simulator; use 1, "
            "or init_params.sim_backend=gpu"
        )
    if shards not in (None, environments):
        raise ValueError(f"async.rollout.shards={shards}: {why}; use auto or {environments}")
    return environments


def choose_shards(
    *,
    asked: int | None,
    simulator: str,
    splitting: Splitting,
    stages: int,
    fits: Callable[[int], bool],
    most: int,
) -> int:
    """Return the shards per env worker: `asked`, or the choice for `shards: auto` (`asked` is None).

    `auto` splits neither a GPU-vectorised simulator nor an unknown one, and keeps a `pipeline_stage_num`
    above 1. Simulators with a process each get as many shards as fit, so that none waits for another;
    simulators that share the process of their worker get two.

    Args:
        simulator: its name, for the message.
        stages: `pipeline_stage_num` of the user's config.
        fits: returns True if a run can be made with this number of shards per worker.
        most: environments (or groups, which are not cut) of an env worker.

    Raises:
        ValueError: a vectorised simulator would be split.
    """
    if asked is not None:
        if splitting == "vectorised" and asked > stages:
            raise ValueError(
                f"async.rollout.shards={asked} would split {simulator}, which vectorises its environments on "
                f"the accelerator; use async.rollout.shards=auto or {stages}"
            )
        return asked
    if splitting in ("vectorised", "unknown") or stages > 1:
        return stages
    target = min(most, MOST_SHARDS) if splitting == "apart" else AUTO_SHARDS
    return next((shards for shards in range(target, 1, -1) if fits(shards)), 1)


def divide(
    one_each: ShardPlan,
    train: Mapping[str, Any],
    rollout: RolloutConfig,
    *,
    stages: int,
    evaluates: Callable[[int], bool],
) -> ShardPlan:
    """Return the plan of a run: `one_each`, which has one shard per env worker, with the env workers divided.

    Args:
        train: the `env` section of the training environments.
        stages: shards of an env worker in the framework's config, used unless level 2 sets a number.
        evaluates: returns True if the evaluation environments, if any, divide into this number of shards.

    Raises:
        ValueError: `async.rollout.shards` asks for a split that the simulators do not allow.
    """
    shards_asked = int(rollout.shards) if rollout.enabled and rollout.shards != "auto" else None
    if hold_one_environment(train):
        shards = shards_of_one(train, environments=one_each.envs_per_shard, shards=shards_asked)
    elif not rollout.enabled:
        # One inference rank answers a shard, so every rank gets a shard, unless the split slows the
        # simulators down: that costs more than an idle rank.
        least = 1 if one_batch(train) else math.ceil(one_each.inference_ranks / one_each.env_workers)
        shards = max(stages, least)
    else:
        shards = choose_shards(
            asked=shards_asked,
            simulator=str(train["env_type"]),
            stages=stages,
            fits=lambda n: one_each.fits(n) and evaluates(n * one_each.env_workers),
            most=one_each.envs_per_shard // one_each.group_size,
            splitting=splitting(train),
        )
    return replace(one_each, shards_per_worker=shards)


class Evaluation:
    """The evaluation environments of a run, split into as many shards as the training environments."""

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

    def size_reasons(self, settings: RunSettings) -> Iterator[Reason]:
        """Yield the reasons why `settings` cannot split the environments, with the nearest number that
        works.
        """
        shards, total, most = settings.plan.shards, self.total, settings.max_batch_size
        if total and hold_one_environment(self._section) and total != shards:
            yield Reason(
                f"env.eval.total_num_envs={total}: {self._section['env_type']} simulates one environment at "
                f"a time on the CPU; use {shards}, one for each shard",
                f"env.eval.total_num_envs={shards}",
            )
        elif not self.fits(shards):
            nearest = nearest_multiple(total, shards * self._group)
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


def max_batch_size(rollout: RolloutConfig, plan: ShardPlan, evaluation: Evaluation) -> int:
    """Return the largest number of environments in one forward pass.

    With `auto`: an inference rank's share of all environments, but at least the largest request.
    """
    if rollout.max_batch_size != "auto":
        return int(rollout.max_batch_size)
    return max(
        plan.envs_per_shard, math.ceil(plan.total_envs / plan.inference_ranks), evaluation.of_shard(plan)
    )


def request_reasons(settings: RunSettings) -> Iterator[Reason]:
    """Yield a reason if a dynamic batch would be smaller than a request."""
    most, shard = settings.max_batch_size, settings.plan.envs_per_shard
    if settings.asynchrony.rollout.enabled and most < shard:
        yield Reason(
            f"async.rollout.max_batch_size={most} is smaller than a shard of {shard} environments; a request "
            f"is never split: use at least {shard}, or more shards"
        )
