"""What the levels of a run mean for RLinf's NFT, which trains on velocities and has no probability ratio.

With the stored velocity v_d of the policy that acted, the gradient of a sample needs no importance weight: it
goes toward samples that succeeded, away from those that did not, and back to the policy that acted. So no lag
is corrected; docs/rlinf-autumn.md has the formulas. RLinf's actor trains a whole batch, without a training
step for a micro-batch: level 3 waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.view import RLinfView

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.run_settings import RLinfSettings

WAITS = "RLinf's NFT has no training step for a part of a batch"
"""Why level 3 streams nothing."""
NO_RATIO = "none: the loss has no probability ratio, and needs no weight"


def without_ratio(asynchrony: AsyncConfig) -> AsyncConfig:
    """Return a block for a loss without a probability ratio: none is weighed, recomputed or measured."""
    return replace(
        asynchrony,
        train=replace(asynchrony.train, correction="none"),
        advanced=replace(asynchrony.advanced, accept_bias=True, measure_ratios=False),
    )


def correction_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if a correction by ratios is asked for, and the loss has none."""
    if not view.has_ratio and view.correction != "none":
        yield Reason(
            f"async.train.correction={view.correction} weighs samples by a probability ratio, which "
            f"algorithm.loss_type={view.loss} does not have; remove the key",
            "~async.train.correction",
        )


def scores_old_velocities(algorithm: Mapping[str, Any]) -> bool:
    """Return True if v_d is scored when a batch is trained; the stored v_d is used otherwise."""
    resamples = algorithm.get("nft_xcur_source", "rollout") == "resample"
    return resamples or bool(algorithm.get("recompute_v", False))


def averages(algorithm: Mapping[str, Any]) -> bool:
    """Return True if RLinf publishes a moving average of the weights, at any step of the run."""
    tau = algorithm.get("nft_tau", 1.0)
    return min(tau[:2] if isinstance(tau, list | tuple) else [tau]) < 1.0


def train_exactness(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> str:
    """Return the verdict on level 1 with a lag."""
    age = asynchrony.max_staleness
    versions = "1 policy version" if age == 1 else f"{age} policy versions"
    bound = "exactly" if asynchrony.deterministic else "up to"
    how = "is scored by the version that acted" if scores_old_velocities(cfg["algorithm"]) else "is stored"
    return (
        f"approximate (samples are {bound} {versions} old, and need no importance weight: v_d {how}; the "
        "learner is also drawn back to that older policy, by nft_beta times all that it has moved since)"
    )


def remarks(cfg: Mapping[str, Any], settings: RLinfSettings) -> Iterator[str]:
    """Yield remarks on a run with NFT; `cfg` is plain data."""
    algorithm, off_policy = cfg["algorithm"], settings.asynchrony.off_policy
    if off_policy and scores_old_velocities(algorithm):
        yield (
            f"a learner rank keeps {settings.asynchrony.max_staleness + 1} published versions of all weights "
            "in host memory, and builds a model from each that acted in a batch, to score v_d; "
            "algorithm.nft_xcur_source=rollout with algorithm.recompute_v=false uses the stored v_d instead"
        )
    if averages(algorithm):
        yield (
            f"algorithm.nft_tau={algorithm['nft_tau']} publishes a moving average of the weights: staleness "
            "counts publications, and the weights in an average are older"
        )
