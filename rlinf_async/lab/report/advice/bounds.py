"""Rules for the part that is busy nearly all the time, and for the cost of publication."""

from __future__ import annotations

import math

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.report.advice.facts import Advice, Facts

FULL_PASSES_SHARE = 0.5
"""Full forward passes count as limited by `max_batch_size` above this share of all passes."""
ANCHOR_SHARE = 0.1
"""The pass for the anchor counts above this share of training beside micro-batches and optimizer steps."""
LOGLINEAR_PRICE = (
    "an interpolation, whose error train/proximal_error measures; with several optimizer steps a pass, ten "
    "seeds on two Meta-World tasks could not rule out that it learns more than 5 % less: -2.9 % of the area "
    "under the success curve [-6.5, +0.6]"
)
"""The price of an interpolated anchor; docs/learning.md has the rule that it failed."""
PUBLICATION_SHARE = 0.05
"""Least share of the learner's time that publication takes before a change is worth its price."""
MOST_PROCESSES = 4
"""Most advised processes of a shard's simulators."""


def more_simulators(facts: Facts) -> Advice | None:
    """Environments bound the run, and there is an idle core for more of them at once, or level 2 is off."""
    diagnosis = facts.measures.diagnosis
    if facts.bound != "env" or facts.plan is None or diagnosis is None:
        return None
    because = f"Environments bound the run, and its busiest shard works {diagnosis.share:.0%} of the time"
    if facts.off("rollout") and facts.divisible:
        return Advice(
            rule="more simulators",
            because=f"{because}; level 2 divides its {facts.plan.envs_per_shard} environments, so that fewer "
            "wait for the slowest",
            setting="async.rollout.enabled",
            before="false",
            after="true",
        )
    if facts.machine.simulators == "accelerator":
        return _more_workers(facts, facts.plan, because, "as far as there are accelerators")
    if not facts.has_idle_core:
        return None
    because = f"{because}, while {facts.idle_cores:.1f} of {facts.machine.cores} processor cores are idle"
    return (
        _smaller_shards(facts, facts.plan, because)
        or _own_processes(facts, facts.plan, because)
        or _more_workers(facts, facts.plan, because, "a process more for each")
    )


def _smaller_shards(facts: Facts, plan: ShardPlan, because: str) -> Advice | None:
    if (shards := facts.more_shards) is None:
        return None
    return Advice(
        rule="more simulators",
        because=f"{because}; in smaller shards fewer simulators wait for each other",
        setting="async.rollout.shards",
        before=str(plan.shards_per_worker),
        after=str(shards),
    )


def _own_processes(facts: Facts, plan: ShardPlan, because: str) -> Advice | None:
    """Simulators that take turns in their worker's process, and could have processes of their own."""
    if facts.machine.simulators != "worker" or facts.machine.processes is None:
        return None
    room = int((facts.idle_cores or 0.0) / plan.shards)
    fits = [n for n in range(1, min(room, MOST_PROCESSES) + 1) if plan.envs_per_shard % n == 0]
    if not fits:
        return None
    return Advice(
        rule="more simulators",
        because=f"{because}; in processes of their own simulators do not take turns in the worker's",
        setting="env.train.processes",
        before="0",
        after=str(fits[-1]),
    )


def _more_workers(facts: Facts, plan: ShardPlan, because: str, but: str) -> Advice | None:
    workers = 2 * plan.env_workers
    if not facts.keys.env_workers or plan.total_envs % (workers * plan.group_size):
        return None
    return Advice(
        rule="more simulators",
        because=f"{because}; more processes step them side by side",
        setting=facts.keys.env_workers,
        before=_count_words(plan.env_workers, "env worker"),
        after=_count_words(workers, "env worker"),
        but=but,
    )


def more_inference(facts: Facts) -> Advice | None:
    """Inference bounds the run: larger batches up to a rank's share, or else another rank."""
    full, plan = facts.measures.full_batches or 0.0, facts.plan
    if facts.bound != "inference" or plan is None:
        return None
    share = facts.measures.busiest["inference"]
    busy = f"Inference bounds the run: its busiest rank works {share:.0%} of the time"
    limit, fair = facts.max_batch_size, -(-plan.total_envs // plan.inference_ranks)
    if facts.on("rollout") and limit is not None and full > FULL_PASSES_SHARE and limit < fair:
        return Advice(
            rule="more inference",
            because=f"{busy}, and {full:.0%} of its forward passes are full",
            setting="async.rollout.max_batch_size",
            before=str(limit),
            after=str(min(2 * limit, fair)),
        )
    return another_rank(facts, plan, f"{busy}; another rank shares the requests")


def another_rank(facts: Facts, plan: ShardPlan, because: str) -> Advice | None:
    if not facts.keys.inference_ranks or not facts.has_room_for_a_rank:
        return None
    return Advice(
        rule="more inference",
        because=because,
        setting=facts.keys.inference_ranks,
        before=_count_words(plan.inference_ranks, "rank"),
        after=_count_words(plan.inference_ranks + 1, "rank"),
        but=facts.room,
    )


def cheaper_anchor(facts: Facts) -> Advice | None:
    """The learner bounds the run, and much of its training is the pass that anchors the correction."""
    share = facts.measures.beside_micro_batches or 0.0
    if (
        facts.bound != "learner"
        or not facts.corrects
        or facts.proximal != "recomputed"
        or share < ANCHOR_SHARE
    ):
        return None
    because = (
        f"The learner bounds the run, and {share:.0%} of its training is no micro-batch and no "
        "optimizer step, among it the pass without gradients that anchors the correction"
    )
    return Advice(
        rule="cheaper anchor",
        because=because,
        setting="async.advanced.proximal",
        before="recomputed",
        after="loglinear",
        but=LOGLINEAR_PRICE,
    )


def more_learners(facts: Facts) -> Advice | None:
    """The learner bounds the run, and twice as many ranks could divide its batches."""
    plan, key = facts.plan, facts.keys.learner_ranks
    if facts.bound != "learner" or plan is None or not key or not facts.has_room_for_a_rank:
        return None
    ranks = 2 * plan.learner_ranks
    if plan.total_envs % (plan.group_size * math.lcm(plan.shards, ranks)):
        return None
    return Advice(
        rule="more learners",
        because=f"The learner bounds the run: its busiest rank works {facts.measures.busiest['learner']:.0%} "
        "of the time",
        setting=key,
        before=_count_words(plan.learner_ranks, "rank"),
        after=_count_words(ranks, "rank"),
        but=facts.room,
    )


def cheaper_publication(facts: Facts) -> Advice | None:
    """Publication takes a share of the learner's time that is worth the price of the change."""
    share, seconds = facts.measures.busiest.get("publication", 0.0), facts.measures.publication_s or 0.0
    if share <= PUBLICATION_SHARE:
        return None
    copies = facts.waits("learner", "copy")
    because = f"Publication keeps the learner {share:.1%} of the time, {seconds * 1000:.0f} ms a step"
    if facts.weight_syncer != "bucket" or facts.bucket_dtype is not None:
        return None
    if facts.precision not in ("fp32", "32") or copies < share / 2:
        return None
    return Advice(
        rule="cheaper publication",
        because=f"{because}, most of it to copy its weights",
        setting="weight_syncer.bucket.bucket_dtype",
        before="null",
        after="bf16",
        but="inference then acts by rounded weights; train/mismatch says how far that is off",
    )


def _count_words(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
