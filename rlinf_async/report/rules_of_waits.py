"""Rules for parts that wait: for each other, in a queue, or for the driver."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_async.report.facts import Advice, Facts, Rule
from rlinf_async.report.rules_of_bounds import another_rank

WAITS = 0.2
"""A part that waits for a larger share of the time waits for something that can be changed."""
IDLE = 0.4
"""Inference that is idle for a larger share of the time has room for more requests."""
EVALUATION = 0.05


def overlap_training(facts: Facts) -> Advice | None:
    waits, gate = facts.waits("learner", "fetch"), facts.waits("env", "gate")
    off, zero = facts.off("train"), facts.on("train") and facts.max_staleness == 0
    if waits < WAITS or gate < WAITS / 2 or not (off or zero):
        return None
    return Advice(
        rule="overlap training",
        because=f"The learner waits for trajectories {waits:.0%} of the time and shards wait at the gate "
        f"{gate:.0%}, one after the other; level 1 lets rollouts go on while the learner trains",
        setting="async.train.enabled" if off else "async.train.max_staleness",
        before="false" if off else "0",
        after="true" if off else "1",
        but="samples are then up to one policy version old, and corrected for it",
    )


def split_rollouts(facts: Facts) -> Advice | None:
    waits = facts.waits("env", "ask")
    if not facts.off("rollout") or waits < WAITS or facts.bound == "env":
        return None
    return Advice(
        rule="split rollouts",
        because=f"Shards wait for actions {waits:.0%} of the time, and inference is idle "
        f"{facts.waits('inference', 'idle'):.0%}, because it waits for all shards in flight; level 2 answers "
        "whoever asks",
        setting="async.rollout.enabled",
        before="false",
        after="true",
    )


def stream(facts: Facts) -> Advice | None:
    waits, trains = facts.waits("learner", "fetch"), facts.waits("learner", "accept")
    streams = facts.advantage != "gae" or facts.update_epoch == 1
    if not facts.off("streamer") or min(waits, trains) < WAITS or not streams:
        return None
    return Advice(
        rule="stream",
        because=f"The learner waits for whole batches {waits:.0%} of the time and then trains {trains:.0%}; "
        "level 3 trains on what has arrived",
        setting="async.streamer.enabled",
        before="false",
        after="true",
        but="rlinf-async explain says whether that is exact for this config",
    )


def stop_deferring(facts: Facts) -> Advice | None:
    waits = facts.waits("learner", "fetch")
    deferred = facts.advantage == "gae" and facts.normalization == "deferred" and facts.update_epoch == 1
    if not facts.on("streamer") or not deferred or waits < WAITS:
        return None
    return Advice(
        rule="stop deferring",
        because=f"The learner waits for trajectories {waits:.0%} of the time, because advantages are "
        "normalised by the whole batch",
        setting="async.streamer.normalization",
        before="deferred",
        after="running",
        but="approximate: advantages are normalised by the batch before",
    )


def run_ahead(facts: Facts) -> Advice | None:
    waits, gate = facts.waits("learner", "fetch"), facts.waits("env", "gate")
    if not facts.on("train") or facts.max_staleness != 1 or min(waits, gate) < WAITS:
        return None
    return Advice(
        rule="run ahead",
        because=f"The learner waits for trajectories {waits:.0%} of the time and the mean shard waits at the "
        f"gate {gate:.0%}, by turns: steps vary more than one batch of lead can hide",
        setting="async.train.max_staleness",
        before="1",
        after="2",
        but="older samples cost one more batch of delay in learning",
    )


def smaller_shards(facts: Facts) -> Advice | None:
    asks, idle, shards = facts.waits("env", "ask"), facts.waits("inference", "idle"), facts.more_shards
    if shards is None or facts.plan is None or facts.bound == "env" or asks < WAITS or idle < IDLE:
        return None
    return Advice(
        rule="smaller shards",
        because=f"Inference is idle {idle:.0%} of the time while shards wait for actions {asks:.0%}; of more "
        "and smaller shards, some step while others are answered",
        setting="async.rollout.shards",
        before=str(facts.plan.shards_per_worker),
        after=str(shards),
    )


def shorter_queue(facts: Facts) -> Advice | None:
    queued, forward = facts.measures.queued_s or 0.0, facts.measures.forward_s or 0.0
    idle, busy = facts.waits("inference", "idle"), facts.measures.busy.get("inference", 0.0)
    if facts.max_wait_s > 0 and idle >= WAITS and queued > facts.max_wait_s / 2:
        return Advice(
            rule="shorter queue",
            because=f"Requests wait {queued * 1000:.0f} ms for company while inference is idle {idle:.0%} of "
            "the time",
            setting="async.rollout.max_wait_ms",
            before=f"{facts.max_wait_s * 1000:g}",
            after="0",
        )
    crowded = queued > 2 * forward > 0 and busy >= 0.5 and facts.bound != "inference"
    if not crowded or not facts.on("rollout") or facts.plan is None:
        return None
    return another_rank(
        facts.plan,
        f"The oldest request of a batch waits {queued * 1000:.0f} ms for a forward pass of "
        f"{forward * 1000:.0f} ms, with inference busy {busy:.0%} of the time",
    )


def refusals(facts: Facts) -> Advice | None:
    stale = (facts.measures.refused or {}).get("stale", 0)
    if not stale:
        return None
    return Advice(
        rule="refusals",
        because=f"{stale} trajectories were collected and refused as too old",
        setting="async.train.max_staleness",
        before=str(facts.max_staleness),
        after=str(facts.max_staleness + 1),
        but="older samples cost one more batch of delay in learning",
    )


def synchronous(facts: Facts) -> Advice | None:
    oldest = facts.measures.staleness_max
    if not facts.on("train") or facts.max_staleness == 0 or oldest != 0 or facts.measures.steps < 3:
        return None
    return Advice(
        rule="synchronous",
        because=f"No sample after the first step was older than 0 versions, though {facts.max_staleness} "
        "would be allowed; the run is in effect synchronous, and level 1 gains nothing here",
        setting="async.train.enabled",
        before="true",
        after="false",
    )


def rarer(kind: str, what: str, key: str, every: Callable[[Facts], int]) -> Rule:
    def rule(facts: Facts) -> Advice | None:
        share = facts.measures.driver.get(kind, 0.0)
        if share < EVALUATION or every(facts) < 1:
            return None
        return Advice(
            rule=what,
            because=f"The learner waits for {what} {share:.0%} of the time",
            setting=key,
            before=str(every(facts)),
            after=str(2 * every(facts)),
        )

    return rule
