"""Other settings of a run: as overrides, and as what they make of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import yaml

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import AUTO_SHARDS, MOST_SHARDS, ShardPlan
from rlinf_async.lab.plan.job import Job, check, fair_batch

PLAN_PREFIX = "plan."
"""The prefix of fields of `ShardPlan`: placement, which each framework's config says in its own words."""


ACCELERATOR_RATIOS = ((1, 3), (1, 1), (3, 1))
"""Accelerators of inference to those of the learner, where each has its own."""


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


def knobs(job: Job, *, micro_batches: bool) -> Iterator[list[tuple[str, ...]]]:
    """Yield what is searched, one list of alternatives after the other; each is a tuple of overrides.

    `micro_batches`: True if the cost of a micro-batch besides its samples is known.
    """
    plan = job.settings.plan
    yield [(f"async.mode={mode}",) for mode in ("full", "train", "rollout", "streamer")]
    # What shards in one process take from each other is not in a trace of another number of them.
    if job.stepping == "apart":
        one = replace(plan, shards_per_worker=1)
        yield [
            (f"async.rollout.shards={shards}",)
            for shards in _doubling(one.envs_per_shard)
            if one.fits(shards) and shards <= MOST_SHARDS
        ]
    fair = math.ceil(plan.total_envs / plan.inference_ranks)
    yield [(f"async.rollout.max_batch_size={size}",) for size in _doubling(fair) if size >= max(1, fair // 8)]
    if micro_batches:
        micro = job.settings.micro_batch_size
        sizes = (micro // 4, micro // 2, micro, 2 * micro)
        yield [(f"async.streamer.micro_batch_size={size}",) for size in sizes if size]
    if job.settings.asynchrony.recomputes:
        yield [(f"async.train.scorer={scorer}",) for scorer in ("inference", "learner")]


def beyond(job: Job) -> Iterator[tuple[str, ...]]:
    """Yield changes of which samples are trained or how: shown, never recommended."""
    asynchrony = job.settings.asynchrony
    if not asynchrony.train.enabled:
        return
    yield ("async.train.max_staleness=2",)
    yield ("async.train.balance=tasks",)
    if asynchrony.recomputes:
        yield ("async.train.proximal=loglinear",)


def _doubling(most: int) -> list[int]:
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def placements(job: Job, *, gpus: int, shared: bool) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Ways to place a run on `gpus` accelerators: a name, overrides, and whether ranks share devices.

    The run grows with the accelerators: environments and env workers for each stay as they are. `shared`
    says whether the run that is known has inference and learner on the same ones.
    """
    plan = job.settings.plan
    has = (
        max(plan.inference_ranks, plan.learner_ranks) if shared else plan.inference_ranks + plan.learner_ranks
    )
    envs = plan.total_envs * gpus // has
    workers = max(1, plan.env_workers * gpus // has)
    grown = (f"plan.total_envs={envs}", f"plan.env_workers={workers}")
    yield "collocated", (*grown, f"plan.inference_ranks={gpus}", f"plan.learner_ranks={gpus}"), True
    if gpus > 1:
        half = gpus // 2
        yield "hybrid", (*grown, f"plan.inference_ranks={half}", f"plan.learner_ranks={gpus}"), True
    for inference, learner in ACCELERATOR_RATIOS:
        share, left = divmod(gpus, inference + learner)
        if not left:
            ranks = (f"plan.inference_ranks={inference * share}", f"plan.learner_ranks={learner * share}")
            yield f"disaggregated {inference}:{learner}", (*grown, *ranks), False
