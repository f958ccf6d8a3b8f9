"""The simulators of an `env` section: how they divide into shards, and the seeds of those that are rebuilt.

The facts that follow from the sizes of a run are here, too, whatever a framework calls them.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from rlinf_async.config import RolloutConfig
from rlinf_async.core.sharding import (
    SEPARATE_SIMULATORS,
    SHARED_SIMULATORS,
    VECTORISED_SIMULATORS,
    ShardPlan,
    Splitting,
    choose_shards,
    nearest_multiple,
)
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.loops.run_settings import RunSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig

CPU_BACKENDS = frozenset({"cpu", "physx_cpu"})
"""ManiSkill's names, in `init_params.sim_backend`, for physics on the CPU."""


def reseeded(seed: int, times: int, *, generation: int = 0) -> int:
    """Return the seed of environments that were rebuilt `times` times in this life of their process.

    The step is a prime that no number of processes divides, as simulators add their own numbers to a seed.
    """
    # A life has room for 1000 rebuilds: with more, its seeds would meet those of the next life.
    return seed + 7919 * (times + 1000 * generation)


def splitting(train: Mapping[str, Any]) -> Splitting:
    """Return how the simulators of an `env` section can be split; `unknown` of one that no table names.

    The key `processes` of our own Meta-World tells where its simulators are. Environments that a package
    declares are built in the process of their env worker.
    """
    simulator = str(train["env_type"])
    if simulator in VECTORISED_SIMULATORS:
        return "vectorised"
    if simulator in SEPARATE_SIMULATORS and "processes" not in train:
        return "apart"
    if simulator in SEPARATE_SIMULATORS | SHARED_SIMULATORS or train.get("env_class"):
        return "together"
    return "unknown"


def one_batch(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section are, or may be, one batch that a split slows down."""
    return splitting(train) in ("vectorised", "unknown")


def simulators_apart(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section have a process each."""
    return splitting(train) == "apart"


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
    shards_asked = int(rollout.shards) if rollout.enabled and rollout.shards != "auto" else None
    if hold_one_environment(train):
        shards = shards_of_one(train, environments=one_each.envs_per_shard, shards=shards_asked)
    elif not rollout.enabled:
        # A shard belongs to one inference rank. Every rank is given something to do, but for the price of a
        # split that costs more than a rank that idles.
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

    def size_reasons(self, settings: RunSettings) -> Iterator[Reason]:
        """Why the environments cannot be split as `settings` say, with the nearest number that can."""
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
    """Environments in one forward pass at most: by `auto` an inference rank's share of them, but at least
    the largest request.
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


class Rebuilds:
    """Counts the rebuilds of the environments of each stage of an env worker.

    Environments for training get another seed each time, or their first initial states would come again and
    again; those for evaluation keep theirs, as every evaluation is of the same episodes. Each stage is
    counted in its own thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._renewing = Lock()

    def count(self, mode: str, stage: int) -> None:
        """Count one rebuild of the environments of `stage`, which is about to begin."""
        self._counts[mode, stage] += 1

    def seeded(self, mode: str, stage: int, section: DictConfig) -> DictConfig:
        """The section to build those of `stage` from, with the seed that is theirs now."""
        if mode != "train" or section.get("seed") is None:
            return section
        # A copy: the next rebuild counts from the seed of the config again.
        section = copy.deepcopy(section)
        section.seed = reseeded(section.seed, self._counts[mode, stage])
        return section

    @contextmanager
    def renewing(self, stage: int, step: int, *, in_processes: bool) -> Iterator[None]:
        """Enter the block in which the training environments of `stage` are rebuilt at the checkpoint
        after `step`.

        Their seed follows from `step`, however often they have been built before. Stages whose simulators are
        not `in_processes`, in processes of their own, take turns.
        """
        with nullcontext() if in_processes else self._renewing:
            # The rebuild in this block counts one more, so that the seed is that of `step`.
            self._counts["train", stage] = step - 1
            yield


def start_again(train: DictConfig, *, generation: int) -> None:
    """Give the section for training another seed in a process that takes the place of one that has died."""
    if generation and train.get("seed") is not None:
        # In place: rebuilds in this life add to it (`Rebuilds.seeded`).
        train.seed = reseeded(train.seed, 0, generation=generation)
