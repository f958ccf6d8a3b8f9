"""Rules for parts that wait: for each other, in a queue, or for the driver."""

from __future__ import annotations

from rlinf_async.lab.report.advice.bounds import another_rank
from rlinf_async.lab.report.advice.facts import Advice, Facts

WAIT_SHARE = 0.2
"""Waits count above this share of a part's time."""
IDLE_SHARE = 0.4
"""Above this idle share, inference has room for more requests."""
SPLIT_IDLE_SHARE = 0.5
"""Above this idle share of the time of rollouts, inference could make twice as many passes, even if a pass
for half of the environments took as long as a pass for all."""
RESET_SHARE = 0.02
"""Above this share of resets in a shard's time, level 1 pays at any lag: it hides resets behind training."""
EVALUATION_SHARE = 0.05
"""Rarer evaluations or checkpoints are advised from this share of the time on."""
REFUSED_SHARE = 0.01
"""Refusals count from this share of the trained trajectories on."""
MAX_ADVISED_LAG = 2
"""Largest advised lag: beyond it the cost in learning grows, and the gain in speed does not."""


def overlap_training(facts: Facts) -> Advice | None:
    """Learner and shards wait for each other by turns, and level 1 is off or allows no lag."""
    waits, gate = facts.waits("learner", "fetch"), facts.waits("env", "gate")
    off, zero = facts.off("train"), facts.on("train") and facts.max_staleness == 0
    if waits < WAIT_SHARE or gate < WAIT_SHARE / 2 or not (off or zero):
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
    """Level 2 is off, shards wait for actions, and simulators are not one batch on an accelerator."""
    waits, idle = facts.waits("env", "ask"), facts.waits("inference", "idle")
    if not facts.off("rollout") or waits < WAIT_SHARE or facts.bound == "env" or not facts.divisible:
        return None
    gate = facts.waits("env", "gate")  # in that time there is no rollout to answer
    if idle - gate < SPLIT_IDLE_SHARE * (1 - gate):
        return None
    return Advice(
        rule="split rollouts",
        because=f"Shards wait for actions {waits:.0%} of the time, and inference is idle "
        f"{idle:.0%}, because it waits for all shards in flight; level 2 answers "
        "whoever asks",
        setting="async.rollout.enabled",
        before="false",
        after="true",
    )


def stream(facts: Facts) -> Advice | None:
    """Level 3 is off, learner and shards wait for each other in turn, and the learner could stream."""
    waits, trains = facts.waits("learner", "fetch"), facts.waits("learner", "accept")
    streams = facts.advantage != "gae" or facts.update_epoch == 1
    if not facts.off("streamer") or min(waits, trains) < WAIT_SHARE or not streams or not _in_turn(facts):
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


def _in_turn(facts: Facts) -> bool:
    """Return True if shards wait for the learner, too: a shard that no other part waits for gains nothing
    by being faster.
    """
    return facts.waits("env", "gate") >= WAIT_SHARE / 2


def stop_deferring(facts: Facts) -> Advice | None:
    """Level 3 is on, and learner and shards wait in turn, as advantages are normalised by whole batches."""
    waits = facts.waits("learner", "fetch")
    deferred = facts.advantage == "gae" and facts.normalization == "deferred" and facts.update_epoch == 1
    if not facts.on("streamer") or not deferred or waits < WAIT_SHARE or not _in_turn(facts):
        return None
    return Advice(
        rule="stop deferring",
        because=f"The learner waits for trajectories {waits:.0%} of the time, because advantages are "
        "normalised by the whole batch",
        setting="async.advanced.normalization",
        before="deferred",
        after="running",
        but="approximate: the first optimizer step normalises advantages by the batch before",
    )


def run_ahead(facts: Facts) -> Advice | None:
    """A lag of 1 is used up: the learner waits for trajectories, and shards wait at the gate."""
    waits, gate = facts.waits("learner", "fetch"), facts.waits("env", "gate")
    if not facts.on("train") or facts.max_staleness != 1 or min(waits, gate) < WAIT_SHARE:
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
    """Shards wait for actions while inference is idle, and `Facts.more_shards` names a number."""
    asks, idle, shards = facts.waits("env", "ask"), facts.waits("inference", "idle"), facts.more_shards
    if shards is None or facts.plan is None or facts.bound == "env" or asks < WAIT_SHARE or idle < IDLE_SHARE:
        return None
    return Advice(
        rule="smaller shards",
        because=f"Inference is idle {idle:.0%} of the time while shards wait for actions {asks:.0%}; of more "
        "and smaller shards, some step while others are answered",
        setting="async.rollout.shards",
        before=str(facts.plan.shards_per_worker),
        after=str(shards),
    )


def larger_shards(facts: Facts) -> Advice | None:
    """Requests of many shards wait for one env worker's Python, and `Facts.fewer_shards` names a number."""
    shards, ask_s = facts.fewer_shards, facts.measures.ask_s
    if shards is None or facts.plan is None or ask_s is None or not facts.on("rollout"):
        return None
    if facts.bound in ("inference", "learner"):  # their pace is the run's, however fast shards are
        return None
    queued, forward = facts.measures.queued_s or 0.0, facts.measures.forward_s or 0.0
    return Advice(
        rule="larger shards",
        because=f"An answer takes {ask_s * 1000:.0f} ms, of which {(queued + forward) * 1000:.0f} ms are the "
        f"queue and the forward pass: {facts.plan.shards_per_worker} shards share the Python of an env "
        f"worker, and {facts.between_share:.0%} of a decision is the wait for it; fewer and larger shards "
        "ask it less often",
        setting="async.rollout.shards",
        before=str(facts.plan.shards_per_worker),
        after=str(shards),
        but="environments of a shard wait for the slowest of them; or take more env workers",
    )


def shorter_queue(facts: Facts) -> Advice | None:
    """Requests wait for their batch to fill while inference is idle, or wait for busy inference."""
    queued, forward = facts.measures.queued_s or 0.0, facts.measures.forward_s or 0.0
    idle, busy = facts.waits("inference", "idle"), facts.measures.busy.get("inference", 0.0)
    if facts.max_wait_s > 0 and idle >= WAIT_SHARE and queued > facts.max_wait_s / 2:
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
        facts,
        facts.plan,
        f"The oldest request of a batch waits {queued * 1000:.0f} ms for a forward pass of "
        f"{forward * 1000:.0f} ms, with inference busy {busy:.0%} of the time",
    )


def refusals(facts: Facts) -> Advice | None:
    """A share of the trajectories of at least `REFUSED_SHARE` was refused as too old."""
    stale = (facts.measures.refused or {}).get("stale", 0)
    trained = facts.measures.steps * facts.plan.trajectories_per_batch if facts.plan is not None else 0
    if stale <= REFUSED_SHARE * trained or facts.max_staleness >= MAX_ADVISED_LAG:
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
    """Level 1 is on, no sample was older than 0 versions, and resets are short."""
    oldest = facts.measures.staleness_max
    if facts.waits("env", "reset") > RESET_SHARE:
        return None
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


def rarer_evaluation(facts: Facts) -> Advice | None:
    """The learner waits for evaluations for at least `EVALUATION_SHARE` of the time."""
    return _rarer(facts, "evaluate", "evaluation", facts.keys.evaluation, facts.evaluates_every)


def rarer_checkpoints(facts: Facts) -> Advice | None:
    """The learner waits for checkpoints for at least `EVALUATION_SHARE` of the time."""
    return _rarer(facts, "save", "checkpoints", facts.keys.saving, facts.saves_every)


def _rarer(facts: Facts, kind: str, what: str, key: str, every: int) -> Advice | None:
    share = facts.measures.driver.get(kind, 0.0)
    if share < EVALUATION_SHARE or every < 1:
        return None
    return Advice(
        rule=what,
        because=f"The learner waits for {what} {share:.0%} of the time",
        setting=key,
        before=str(every),
        after=str(2 * every),
    )
