"""The simulators of an `env` section: their division into shards, and the seeds of rebuilt ones.

Also: checks of the sizes of a run that are the same for all frameworks.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf_async.config import AsyncConfig, RolloutConfig
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

AnySettings = TypeVar("AnySettings", bound=RunSettings)

CPU_BACKENDS = frozenset({"cpu", "physx_cpu"})
"""ManiSkill's values of `init_params.sim_backend` for physics on the CPU."""


def reseeded(seed: int, times: int, *, generation: int = 0) -> int:
    """Return the seed of environments that were rebuilt `times` times since their process started.

    Seeds differ by multiples of a large prime, as simulators add their own small numbers to a seed.
    """
    # Each generation of a process has 1000 seeds: with more rebuilds they would repeat the next generation's.
    return seed + 7919 * (times + 1000 * generation)


def splitting(train: Mapping[str, Any]) -> Splitting:
    """Return how the simulators of an `env` section can be split; `unknown` for a simulator in no table.

    This package's Meta-World, recognised by its key `processes`, counts as `together`; so do environments
    that a package declares, which are built in the process of their env worker.
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


def shard_choices(
    plan: ShardPlan,
    train: Mapping[str, Any],
    asynchrony: AsyncConfig,
    *,
    stages: int,
    evaluation: Evaluation,
    most: int,
) -> tuple[int, ...]:
    """Return the numbers of shards per env worker that a run may take after its first step; see
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


class Rebuilds:
    """Counts the rebuilds of the environments of each stage of an env worker.

    Training environments get another seed with each rebuild, or they would repeat their first initial states.
    Evaluation environments keep their seed, as every evaluation has the same episodes. Each stage is counted
    in its own thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._renewing = Lock()

    def count(self, mode: str, stage: int) -> None:
        """Count one rebuild of the environments of `stage`, just before it begins."""
        self._counts[mode, stage] += 1

    def count_all(self, mode: str, stages: int) -> None:
        """Count one rebuild of all environments, which then have `stages` stages."""
        most = max((count for (of, _), count in self._counts.items() if of == mode), default=0)
        self._counts.update({(mode, stage): most + 1 - self._counts[mode, stage] for stage in range(stages)})

    def seeded(self, mode: str, stage: int, section: DictConfig) -> DictConfig:
        """Return the section for building the environments of `stage`, with their current seed."""
        if mode != "train" or section.get("seed") is None:
            return section
        # A copy, as the next rebuild starts from the config's seed again.
        section = copy.deepcopy(section)
        section.seed = reseeded(section.seed, self._counts[mode, stage])
        return section

    @contextmanager
    def renewing(self, stage: int, step: int, *, in_processes: bool) -> Iterator[None]:
        """Set the seed for rebuilding the training environments of `stage` at the checkpoint after `step`.

        The seed depends on `step` alone, not on earlier rebuilds. Stages rebuild one after the other, unless
        each simulator is in a process of its own (`in_processes`).
        """
        with nullcontext() if in_processes else self._renewing:
            # The rebuild inside the block adds one.
            self._counts["train", stage] = step - 1
            yield


def start_again(train: DictConfig, *, generation: int) -> None:
    """Give the training section another seed if this process replaces one that died."""
    if generation and train.get("seed") is not None:
        # In place, as rebuilds add to this seed (`Rebuilds.seeded`).
        train.seed = reseeded(train.seed, 0, generation=generation)
