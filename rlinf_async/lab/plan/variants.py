"""Other settings of a run: as overrides, and as what they make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import yaml

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import AUTO_SHARDS, MOST_SHARDS, ShardPlan
from rlinf_async.lab.plan.job import Job, check, fair_batch

PLAN_PREFIX = "plan."
"""The prefix of fields of `ShardPlan`: placement, which each framework's config says in its own words."""


def changed(job: Job, overrides: Sequence[str]) -> Job:
    """The run with `overrides`: `async.*` keys, and `plan.*` for workers, ranks and environments.

    Raises:
        ValueError: another key, or settings that do not fit together.
    """
    block: dict[str, Any] = asdict(job.settings.asynchrony)
    sizes: dict[str, int] = {}
    for override in overrides:
        key, given, text = override.partition("=")
        value = yaml.safe_load(text)
        if key.startswith(PLAN_PREFIX) and key[len(PLAN_PREFIX) :] in {
            item.name for item in fields(ShardPlan)
        }:
            sizes[key[len(PLAN_PREFIX) :]] = int(value)
        elif given and key.startswith("async."):
            _set(block, key.split(".")[1:], value)
        else:
            raise ValueError(
                f"{override!r} is no override that can be planned: use async.KEY=VALUE or plan.FIELD=N"
            )
    return _resolved(job, AsyncConfig.from_mapping(block), sizes)


def _set(block: dict[str, Any], keys: Sequence[str], value: object) -> None:
    if keys == ["mode"]:
        for level in ("train", "rollout", "streamer"):
            block[level].pop("enabled", None)
        value = "off" if value is False else value
    inner = block
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = value


def _resolved(job: Job, asynchrony: AsyncConfig, sizes: Mapping[str, int]) -> Job:
    settings, rollout = job.settings, asynchrony.rollout
    one = replace(settings.plan, **{**sizes, "shards_per_worker": 1})
    if not rollout.enabled:
        shards = max(1, math.ceil(one.inference_ranks / one.env_workers))
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
    # More ranks have less each: a micro-batch may have to shrink.
    fitting = math.gcd(settings.micro_batch_size, max(1, global_batch // plan.learner_ranks))
    result = replace(
        settings,
        asynchrony=asynchrony,
        plan=plan,
        global_batch_size=global_batch,
        micro_batch_size=fitting if micro == "auto" else micro,
        max_batch_size=fair_batch(plan) if rollout.max_batch_size == "auto" else rollout.max_batch_size,
    )
    check(result)
    return replace(job, settings=result)


def _automatic(job: Job, one: ShardPlan) -> int:
    """As `shards: auto` does."""
    if job.stepping == "at once":
        return 1
    separate = min(one.envs_per_shard // one.group_size, MOST_SHARDS)
    most = separate if job.stepping == "apart" else AUTO_SHARDS
    return next((shards for shards in range(most, 1, -1) if one.fits(shards)), 1)
