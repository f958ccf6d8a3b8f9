"""Tells for each level whether a run with it computes the same as the synchronous loop, and if not, why.

Also gives the reason why inference may not score samples for the learner: its numbers would differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async.config import AsyncConfig
from rlinf_async.core.precision import precision_of
from rlinf_async.entry_points import OWN_MODELS
from rlinf_async.loops.run_settings import RunSettings

EXACT_VERDICT, NOT_EXAMINED = "exact", "not examined"


def train_exactness(asynchrony: AsyncConfig) -> str:
    """Return the verdict on level 1: `exact`, `approximate (WHY; EXACT ALTERNATIVE)` or `off`."""
    train = asynchrony.train
    if not train.enabled:
        return "off"
    if not asynchrony.off_policy:
        return f"{EXACT_VERDICT} (max_staleness is 0: every sample is on-policy)"
    how = "without a correction" if train.correction == "none" else f"corrected by {train.correction}"
    if train.correction != "none" and asynchrony.advanced.proximal == "loglinear":
        how += " around an interpolated proximal policy; async.advanced.proximal=recomputed computes it"
    age = "1 policy version" if train.max_staleness == 1 else f"{train.max_staleness} policy versions"
    bound = "exactly" if asynchrony.deterministic else "up to"
    return f"approximate (samples are {bound} {age} old, {how})"


def rollout_exactness(asynchrony: AsyncConfig, *, model: str, shares: str | None) -> str:
    """Return the verdict on level 2, with a policy called `model`.

    `shares` names the random numbers that the policy draws once for all samples of a forward pass: empty if
    there are none, None if the policy was not examined.
    """
    if not asynchrony.rollout.enabled:
        return "off"
    if shares is None:
        return (
            f"{NOT_EXAMINED} ({model} may draw random numbers once for all samples of a pass; where it "
            "draws for each sample separately, trajectories are the same in distribution)"
        )
    more = f"; {shares}" if shares else ""
    return (
        f"{EXACT_VERDICT} (the same trajectories in distribution; random numbers are drawn in another "
        f"order{more})"
    )


def own_chance(model: object) -> str | None:
    """Return `shares` for a policy of `rlinf_async.models`: "" for those of this package, None for others."""
    return "" if model in OWN_MODELS else None


def streamer_exactness(
    settings: RunSettings,
    *,
    deferred: str = "normalization is deferred",
    more: Sequence[str] = (),
) -> str:
    """Return the verdict on level 3.

    Args:
        deferred: the reason why the learner waits for the whole batch, if it does.
        more: further reasons why the result on a part of a batch differs on this host.
    """
    if not settings.asynchrony.streamer.enabled:
        return "off"
    if not settings.streams:
        return f"{EXACT_VERDICT} ({deferred}: the learner waits for the whole batch before it steps)"
    reasons = []
    if settings.normalizes:
        reasons.append(
            "the first optimizer step of a batch normalises advantages by the batch before; "
            "async.advanced.normalization=deferred is exact"
        )
    reasons += more
    if reasons:
        return f"approximate ({'; '.join(reasons)})"
    if settings.spreads_steps:
        return f"{EXACT_VERDICT} (every optimizer step has an equal share of every rollout, drawn at random)"
    return f"{EXACT_VERDICT} (one optimizer step per pass over the batch, sums divided once)"


def why_learner_scores(
    asynchrony: AsyncConfig, *, learner: object, inference: object, share: bool = False
) -> str:
    """Return the reason why the learner scores every batch alone; empty if inference may help.

    Args:
        learner: the learner's precision.
        inference: the precision of inference ranks.
        share: True if both use the same accelerators, so that inference is not idle while the learner scores.
    """
    if share:
        return "inference shares its accelerators"
    computes = [precision_of(name) for name in (learner, inference)]
    if computes[0] != computes[1]:
        return f"it computes in {computes[0]}, and inference in {computes[1]}"
    if not asynchrony.advanced.measures:
        return "async.advanced.measure_ratios=false does not measure whether inference computes the same"
    return ""
