"""What an `env` section of RLinf's config says about its simulators: how far they can be divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.sharding import SEPARATE_SIMULATORS

CPU_BACKENDS = frozenset({"cpu", "physx_cpu"})
"""ManiSkill's names, in `init_params.sim_backend`, for physics on the CPU."""


def simulators_apart(train: Mapping[str, Any]) -> bool:
    """Whether the simulators of an `env` section have a process each.

    Our own Meta-World says by `processes` where its simulators are.
    """
    return train["env_type"] in SEPARATE_SIMULATORS and "processes" not in train


def hold_one_environment(train: Mapping[str, Any]) -> bool:
    """Whether a simulator of an `env` section holds one environment, so that each is a shard of its own.

    ManiSkill batches environments on a GPU only; on the CPU it refuses a second one in a simulator.
    """
    backend = str((train.get("init_params") or {}).get("sim_backend", ""))
    return train["env_type"] == "maniskill" and backend in CPU_BACKENDS


def shards_of_one(train: Mapping[str, Any], *, environments: int, asked: int | None) -> int:
    """Shards of an env worker whose simulators hold one environment: as many as it has environments.

    Args:
        environments: of an env worker.
        asked: `async.rollout.shards`, or None for auto.

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
    if asked not in (None, environments):
        raise ValueError(f"async.rollout.shards={asked}: {why}; use auto or {environments}")
    return environments
