"""The job of a run, from its directory: sizes and levels, whichever framework runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.sharding import VECTORISED_SIMULATORS, ShardPlan
from rlinf_async.hosts.simulators import hold_one_environment, simulators_apart
from rlinf_async.loops.run_settings import RunSettings

CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "global_batch_size": ("actor.global_batch_size", "settings.global_batch_size"),
    "mini_batch_size": ("actor_rollout_ref.actor.ppo_mini_batch_size",),
    "update_epoch": ("algorithm.update_epoch", "actor_rollout_ref.actor.ppo_epochs", "settings.update_epoch"),
    "advantage": ("algorithm.adv_type", "algorithm.adv_estimator", "settings.algorithm"),
    "decision_steps": ("actor.model.num_action_chunks", "vla.model.num_action_chunks"),
}
"""The keys of the frameworks' configs for each fact; the first that is there counts."""
NORMALISED_ADVANTAGES = ("gae", "ppo")
"""Advantages that are normalised over the whole batch, by the names that configs give them."""

Stepping = Literal["apart", "in turn", "at once"]
"""The way in which the environments of a shard step: each in its process, all in one process, or as one
on an accelerator."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, and the facts that are known of it besides its settings."""

    settings: RunSettings
    decision_steps: int
    """Environment steps in one decision."""
    stepping: Stepping


def of_run(facts: Mapping[str, Any], config: Mapping[str, Any]) -> Job:
    """From the `run.json` and `config.yaml` of a run directory.

    Raises:
        ValueError: they do not say enough.
    """
    if not isinstance(facts.get("plan"), dict):
        raise ValueError(
            "run.json names no plan of shards: only a run with a level on can be calibrated from"
        )
    names = {item.name for item in fields(ShardPlan)}
    plan = ShardPlan(**{name: value for name, value in facts["plan"].items() if name in names})
    horizon = int(facts["horizon"])
    settings = RunSettings(
        asynchrony=AsyncConfig.from_mapping(config.get("async")),
        plan=plan,
        horizon=horizon,
        batches=int(facts["steps"]),
        global_batch_size=_global_batch(config, plan, horizon),
        micro_batch_size=int(facts["micro_batch_size"]),
        update_epoch=int(_read(config, "update_epoch") or 1),
        max_batch_size=int(facts["max_batch_size"]),
        normalizes=str(_read(config, "advantage") or "gae") in NORMALISED_ADVANTAGES,
        seed=0,
        learner_scores=str(facts.get("learner_scores", "")),
    )
    check(settings)
    return Job(
        settings=settings,
        decision_steps=int(_read(config, "decision_steps") or 1),
        stepping=_stepping(lookup(config, "env.train")),
    )


def _global_batch(config: Mapping[str, Any], plan: ShardPlan, horizon: int) -> int:
    """Samples of an optimizer step; some count the groups of rollouts that they come from."""
    groups = _read(config, "mini_batch_size")
    if groups:
        return int(groups) * plan.group_size * horizon
    given = _read(config, "global_batch_size")
    if given is None:
        keys = ", ".join(CONFIG_KEYS["global_batch_size"])
        raise ValueError(f"the config gives none of {keys}, which a plan needs")
    return int(given)


def fair_batch(plan: ShardPlan) -> int:
    """An inference rank's share of the environments, and at least a shard."""
    return max(plan.envs_per_shard, math.ceil(plan.total_envs / plan.inference_ranks))


def _stepping(train: object) -> Stepping:
    if not isinstance(train, dict) or "env_type" not in train:
        return "apart"
    if hold_one_environment(train):
        return "apart"
    if train["env_type"] in VECTORISED_SIMULATORS:
        return "at once"
    return "apart" if simulators_apart(train) else "in turn"


def check(settings: RunSettings) -> None:
    """Check that micro-batches and optimizer steps come out even.

    Raises:
        ValueError: they do not divide.
    """
    micro = settings.micro_batch_size * settings.plan.learner_ranks
    if settings.global_batch_size % micro or settings.samples_per_batch % settings.global_batch_size:
        raise ValueError(
            f"micro_batch_size={settings.micro_batch_size} on {settings.plan.learner_ranks} learner ranks, "
            f"global_batch_size={settings.global_batch_size} and {settings.samples_per_batch} samples per "
            "batch do not divide"
        )
    if settings.asynchrony.rollout.enabled and settings.max_batch_size < settings.plan.envs_per_shard:
        raise ValueError(
            f"max_batch_size={settings.max_batch_size} is smaller than a shard of "
            f"{settings.plan.envs_per_shard} environments"
        )


def _read(config: Mapping[str, Any], name: str) -> Any:
    values = (lookup(config, key) for key in CONFIG_KEYS[name])
    return next((value for value in values if value is not None), None)
