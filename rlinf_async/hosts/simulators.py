"""The simulators of an `env` section of RLinf's config, and how far they can be divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlinf_async.config import RolloutConfig
from rlinf_async.core.sharding import SEPARATE_SIMULATORS, ShardPlan, choose_shards

CPU_BACKENDS = frozenset({"cpu", "physx_cpu"})
"""ManiSkill's names, in `init_params.sim_backend`, for physics on the CPU."""


def reseeded(seed: int, times: int, *, generation: int = 0) -> int:
    """Return the seed of environments that were rebuilt `times` times in this life of their process.

    The step is a prime that no number of processes divides, as simulators add their own numbers to a seed.
    """
    return seed + 7919 * (times + 1000 * generation)


def simulators_apart(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section have a process each.

    The key `processes` of our own Meta-World tells where its simulators are.
    """
    return train["env_type"] in SEPARATE_SIMULATORS and "processes" not in train


def hold_one_environment(train: Mapping[str, Any]) -> bool:
    """Return True if a simulator of an `env` section holds one environment, so that each is a shard of its
    own.

    ManiSkill batches environments on a GPU only; on the CPU it refuses a second one in a simulator.
    """
    backend = str((train.get("init_params") or {}).get("sim_backend", ""))
    return train["env_type"] == "maniskill" and backend in CPU_BACKENDS


def shards_of_one(train: Mapping[str, Any], *, environments: int, shards: int | None) -> int:
    """Shards of an env worker whose simulators hold one environment: as many as it has environments.

    Args:
        environments: of an env worker.
        shards: `async.rollout.shards`, or None for auto.

    Raises:
        ValueError: a setting that puts several environments into a simulator, with one that does not.
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


def divide(
    one_each: ShardPlan,
    train: Mapping[str, Any],
    rollout: RolloutConfig,
    *,
    stages: int,
    evaluates: Callable[[int], bool],
) -> ShardPlan:
    """Return the plan of a run, which divides each env worker of the plan `one_each` into shards.

    Args:
        train: The `env` section of the training environments.
        stages: Shards of an env worker that the framework's config asks for where level 2 does not.
        evaluates: Returns True if the evaluation environments, if any, divide into this number of shards.

    Raises:
        ValueError: `async.rollout.shards` asks for a split that the simulators do not allow.
    """
    asked = int(rollout.shards) if rollout.enabled and rollout.shards != "auto" else None
    if hold_one_environment(train):
        shards = shards_of_one(train, environments=one_each.envs_per_shard, shards=asked)
    elif not rollout.enabled:
        # A shard belongs to one inference rank: give every rank something to do.
        shards = max(stages, math.ceil(one_each.inference_ranks / one_each.env_workers))
    else:
        shards = choose_shards(
            asked=asked,
            simulator=str(train["env_type"]),
            stages=stages,
            fits=lambda n: one_each.fits(n) and evaluates(n * one_each.env_workers),
            most=one_each.envs_per_shard // one_each.group_size,
            separate=simulators_apart(train),
        )
    return replace(one_each, shards_per_worker=shards)
