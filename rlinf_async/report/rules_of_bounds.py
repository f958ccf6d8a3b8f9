"""Rules for the part that is busy nearly all the time, and for what publication costs."""

from __future__ import annotations

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.report.facts import Advice, Facts

FULL = 0.5
"""If more forward passes are full, their limit counts."""
ANCHORS = 0.1
PUBLICATION = 0.01


def more_simulators(facts: Facts) -> Advice | None:
    plan, diagnosis = facts.plan, facts.measures.diagnosis
    if facts.bound != "env" or plan is None or diagnosis is None:
        return None
    because = f"Environments bound the run, and its busiest shard works {diagnosis.share:.0%} of the time"
    if facts.off("rollout") and facts.divisible:
        return Advice(
            rule="more simulators",
            because=f"{because}; level 2 divides its {plan.envs_per_shard} environments, so that fewer "
            "wait for the slowest",
            setting="async.rollout.enabled",
            before="false",
            after="true",
        )
    if (shards := facts.more_shards) is not None:
        return Advice(
            rule="more simulators",
            because=f"{because}; in smaller shards fewer simulators wait for each other",
            setting="async.rollout.shards",
            before=str(plan.shards_per_worker),
            after=str(shards),
            but="as far as there are processor cores",
        )
    workers = 2 * plan.env_workers
    if plan.total_envs % (workers * plan.group_size):
        return None
    return Advice(
        rule="more simulators",
        because=f"{because}; more processes step them side by side",
        setting="cluster.component_placement.env",
        before=_counted(plan.env_workers, "env worker"),
        after=_counted(workers, "env worker"),
        but="as far as there are processor cores",
    )


def more_inference(facts: Facts) -> Advice | None:
    full, plan = facts.measures.full_batches or 0.0, facts.plan
    if facts.bound != "inference" or plan is None:
        return None
    share = facts.measures.busiest["inference"]
    busy = f"Inference bounds the run: its busiest rank works {share:.0%} of the time"
    limit = facts.max_batch_size
    if facts.on("rollout") and limit is not None and full > FULL and limit < plan.total_envs:
        return Advice(
            rule="more inference",
            because=f"{busy}, and {full:.0%} of its forward passes are full",
            setting="async.rollout.max_batch_size",
            before=str(limit),
            after=str(min(2 * limit, plan.total_envs)),
        )
    return another_rank(plan, f"{busy}; another rank shares the requests")


def another_rank(plan: ShardPlan, because: str) -> Advice:
    return Advice(
        rule="more inference",
        because=because,
        setting="cluster.component_placement.rollout",
        before=_counted(plan.inference_ranks, "rank"),
        after=_counted(plan.inference_ranks + 1, "rank"),
        but="as far as there are accelerators",
    )


def cheaper_anchor(facts: Facts) -> Advice | None:
    share = facts.measures.beside_micro_batches or 0.0
    if facts.bound != "learner" or not facts.corrects or facts.proximal != "recomputed" or share < ANCHORS:
        return None
    return Advice(
        rule="cheaper anchor",
        because=f"The learner bounds the run, and {share:.0%} of its training is no micro-batch and no "
        "optimizer step, among it the pass without gradients that anchors the correction",
        setting="async.train.proximal",
        before="recomputed",
        after="loglinear",
        but="an interpolation, whose error train/proximal_error measures",
    )


def more_learners(facts: Facts) -> Advice | None:
    if facts.bound != "learner" or facts.plan is None:
        return None
    ranks = facts.plan.learner_ranks
    share = facts.measures.busiest["learner"]
    return Advice(
        rule="more learners",
        because=f"The learner bounds the run: its busiest rank works {share:.0%} of the time",
        setting="cluster.component_placement.actor",
        before=_counted(ranks, "rank"),
        after=_counted(2 * ranks, "rank"),
        but="as far as there are accelerators",
    )


def cheaper_publication(facts: Facts) -> Advice | None:
    share, seconds = facts.measures.busiest.get("publication", 0.0), facts.measures.publication_s or 0.0
    if share <= PUBLICATION:
        return None
    copies = facts.waits("learner", "copy")
    because = f"Publication keeps the learner {share:.1%} of the time, {seconds * 1000:.0f} ms a step"
    if facts.publication == "host":
        return Advice(
            rule="cheaper publication",
            because=f"{because}; beside training, weights travel while the next batch is trained",
            setting="async.publication",
            before="host",
            after="beside",
        )
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


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
