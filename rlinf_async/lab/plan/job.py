"""The job of a run, from its directory: sizes and levels under any framework, and changes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import yaml

from rlinf_async.config import FLAGS_OF_BLOCK, AsyncConfig, with_flags
from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan, Splitting, splitting
from rlinf_async.hosts.dead_work import why_later_steps_count
from rlinf_async.hosts.simulators import AUTO_SHARDS, MOST_SHARDS, hold_one_environment
from rlinf_async.loops.run_settings import RunSettings

CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "global_batch_size": ("actor.global_batch_size", "settings.global_batch_size"),
    "mini_batch_size": ("actor_rollout_ref.actor.ppo_mini_batch_size",),
    "update_epoch": ("algorithm.update_epoch", "actor_rollout_ref.actor.ppo_epochs", "settings.update_epoch"),
    "advantage": ("algorithm.adv_type", "algorithm.adv_estimator", "settings.algorithm"),
    "decision_steps": ("actor.model.num_action_chunks", "vla.model.num_action_chunks"),
}
"""The frameworks' config keys for each fact; the first existing key counts."""
NORMALISED_ADVANTAGES = ("gae", "ppo")
"""Names in configs of advantages that are normalised over the whole batch."""

Stepping = Literal["apart", "in turn", "at once"]
"""How the environments of a shard step: each in its process, all in one process, or as one batch on an
accelerator."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run's settings, and further facts about it."""

    settings: RunSettings
    decision_steps: int
    """Environment steps in one decision."""
    stepping: Stepping
    skips_ended: bool
    """True if `async.skip.ended`, when on, leaves work out."""
    skips_masked: bool
    """True if `async.skip.masked`, when on, leaves work out; known only for a run that had it on."""


def of_run(facts: Mapping[str, Any], config: Mapping[str, Any]) -> Job:
    """Read the job from the `run.json` and `config.yaml` of a run directory.

    Raises:
        ValueError: the files lack a needed fact.
    """
    if not facts:
        raise ValueError("there is no readable run.json, which names the sizes of a run: a plan needs it")
    if not isinstance(facts.get("plan"), dict):
        raise ValueError(
            "run.json names no plan of shards: only a run with a level on can be calibrated from"
        )
    names = {item.name for item in fields(ShardPlan)}
    plan = ShardPlan(**{name: value for name, value in facts["plan"].items() if name in names})
    horizon = int(facts["horizon"])
    asynchrony, train = checked_config(config.get("async")), lookup(config, "env.train")
    ends = bool(facts.get("skips_ended"))
    if not asynchrony.skip.ended and isinstance(train, dict):
        ends = not any(why_later_steps_count(train))
    masks = bool(facts.get("trains_live_only"))
    settings = RunSettings(
        asynchrony=asynchrony,
        skips_ended=ends and asynchrony.skip.ended,
        left_out=LeftOut(masked=masks),
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
        stepping=_stepping(train),
        skips_ended=ends,
        skips_masked=masks,
    )


def _global_batch(config: Mapping[str, Any], plan: ShardPlan, horizon: int) -> int:
    """Return the samples of an optimizer step; some frameworks count groups of rollouts instead."""
    groups = _read(config, "mini_batch_size")
    if groups:
        return int(groups) * plan.group_size * horizon
    batch_size = _read(config, "global_batch_size")
    if batch_size is None:
        keys = ", ".join(CONFIG_KEYS["global_batch_size"])
        raise ValueError(f"the config gives none of {keys}, which a plan needs")
    return int(batch_size)


def fair_batch(plan: ShardPlan) -> int:
    """Return an inference rank's share of the environments, and at least the size of a shard."""
    return max(plan.envs_per_shard, math.ceil(plan.total_envs / plan.inference_ranks))


def _stepping(train: object) -> Stepping:
    if not isinstance(train, dict) or "env_type" not in train:
        return "apart"
    if hold_one_environment(train):
        return "apart"
    # Simulators that nobody has examined are not split either, as they may be one batch.
    stepping: dict[Splitting, Stepping] = {
        "vectorised": "at once",
        "unknown": "at once",
        "apart": "apart",
        "together": "in turn",
    }
    return stepping[splitting(train)]


def check(settings: RunSettings) -> None:
    """Check that micro-batches and optimizer steps divide evenly.

    Raises:
        ValueError: they do not.
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


PLAN_PREFIX = "plan."
"""The prefix of overrides of `ShardPlan`'s fields: placement, for which each framework has its own keys."""


def changed(job: Job, overrides: Sequence[str]) -> Job:
    """Return the job with `overrides`: `async.*` keys, and `plan.*` for workers, ranks and environments.

    Raises:
        ValueError: another key, or settings that do not fit together.
    """
    block: dict[str, Any] = asdict(job.settings.asynchrony)
    sizes: dict[str, int] = {}
    for override in overrides:
        key, equals_sign, text = override.partition("=")
        value = _value_of(override, text)
        if key.startswith(PLAN_PREFIX) and key[len(PLAN_PREFIX) :] in {
            item.name for item in fields(ShardPlan)
        }:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{key}={text} must be a whole number, as in {key}=2")
            sizes[key[len(PLAN_PREFIX) :]] = value
        elif equals_sign and key.startswith("async."):
            _set(block, key.split(".")[1:], value)
        else:
            raise ValueError(
                f"{override!r} is no override that can be planned: use async.KEY=VALUE or plan.FIELD=N"
            )
    return _with_sizes(job, checked_config(block), sizes)


def _value_of(override: str, text: str) -> object:
    """Return the value of an override.

    Raises:
        ValueError: it is not YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(
            f"the value of {override!r} cannot be read: is a bracket or a quote left open? It looks like "
            "async.rollout.shards=4"
        ) from None


def _set(block: dict[str, Any], keys: Sequence[str], value: object) -> None:
    if keys == ["mode"]:
        for name, flags in FLAGS_OF_BLOCK.items():
            for flag in flags:
                block[name].pop(flag, None)
        value = "off" if value is False else value
    if len(keys) == 1:
        value = with_flags({keys[0]: value})[keys[0]]
    inner = block
    for number, key in enumerate(keys[:-1], start=1):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(
                f"async.{'.'.join(keys[:number])} is a value and has no keys, so that "
                f"async.{'.'.join(keys)} cannot be set"
            )
    inner[keys[-1]] = value


def _with_sizes(job: Job, asynchrony: AsyncConfig, sizes: Mapping[str, int]) -> Job:
    settings, rollout = job.settings, asynchrony.rollout
    one = replace(settings.plan, **{**sizes, "shards_per_worker": 1})
    if not rollout.enabled:
        split = job.stepping != "at once"
        shards = max(1, math.ceil(one.inference_ranks / one.env_workers)) if split else 1
    elif rollout.shards != "auto":
        shards = rollout.shards
    elif settings.asynchrony.rollout.enabled:
        shards = sizes.get("shards_per_worker", settings.plan.shards_per_worker)
    else:
        shards = _automatic(job, one)
    plan = replace(one, shards_per_worker=shards)
    micro = asynchrony.streamer.micro_batch_size if asynchrony.streamer.enabled else "auto"
    grown = plan.trajectories_per_batch / settings.plan.trajectories_per_batch
    global_batch = round(settings.global_batch_size * grown)
    # With more ranks each has fewer samples, so a micro-batch may have to shrink.
    fitting = math.gcd(settings.micro_batch_size, max(1, global_batch // plan.learner_ranks))
    result = replace(
        settings,
        asynchrony=asynchrony,
        skips_ended=job.skips_ended and asynchrony.skip.ended,
        left_out=LeftOut(masked=job.skips_masked and asynchrony.skip.masked),
        plan=plan,
        global_batch_size=global_batch,
        micro_batch_size=fitting if micro == "auto" else micro,
        max_batch_size=fair_batch(plan) if rollout.max_batch_size == "auto" else rollout.max_batch_size,
    )
    check(result)
    return replace(job, settings=result)


def _automatic(job: Job, one: ShardPlan) -> int:
    """Return the number of shards that `shards: auto` chooses."""
    if job.stepping == "at once":
        return 1
    separate = min(one.envs_per_shard // one.group_size, MOST_SHARDS)
    most = separate if job.stepping == "apart" else AUTO_SHARDS
    return next((shards for shards in range(most, 1, -1) if one.fits(shards)), 1)
