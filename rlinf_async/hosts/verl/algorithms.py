"""veRL's advantage estimators and policy losses, by what each needs to see; known without importing veRL.

They are the values of `algorithm.adv_estimator` and of `actor_rollout_ref.actor.policy_loss.loss_mode`.
"""

from __future__ import annotations

VALUE_ESTIMATORS = frozenset({"gae"})
"""Estimators that need the policy's values."""

GROUP_ESTIMATORS = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo"})
"""Estimators that compare the members of a group only, and groups never cross a piece."""

WHITENED_ESTIMATORS = frozenset({"reinforce_plus_plus_baseline"})
"""Estimators that compare the members of a group, and normalise the result over the batch."""

COMPARING_ESTIMATORS = GROUP_ESTIMATORS | WHITENED_ESTIMATORS | {"gpg"}
"""Estimators that compare the members of a group; a member alone has no advantage."""

REFUSED_ESTIMATORS = {
    "remax": "it needs a second, greedy rollout of every start",
    "gdpo": "it needs several rewards of one trajectory",
    "optimal_token_baseline": "it needs the gradients of tokens",
    "tir_optimal_token_baseline": "it needs the gradients of tokens",
}
"""Estimators that need something that a run of policies lacks, and what they need."""

ESTIMATOR_NAMES = tuple(
    sorted({*VALUE_ESTIMATORS, *COMPARING_ESTIMATORS, *REFUSED_ESTIMATORS, "reinforce_plus_plus"})
)
"""All estimators of veRL's; a package of the user's may register others."""

SEQUENCE_LOSSES = frozenset({"sapo"})
"""Losses that are means over the sequences of a step, whatever `loss_agg_mode` says."""

MICRO_BATCH_LOSSES = frozenset({"geo_mean"})
"""Losses that are means over one micro-batch, whatever `loss_agg_mode` says."""

SELECTING_LOSSES = frozenset({"clip_cov", "kl_cov"})
"""Losses that choose among the entries of one micro-batch: its other members matter."""

LOSS_NAMES = tuple(
    sorted(
        {"bypass_mode", "cispo", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo", "vanilla"}
        | SEQUENCE_LOSSES
        | MICRO_BATCH_LOSSES
        | SELECTING_LOSSES
    )
)
"""All losses of veRL's; a package of the user's may register others."""

TOKEN_MEAN_MODE = "token-mean"
"""veRL's default `loss_agg_mode`; streamed micro-batches are sums then, divided when a step is made."""

AGGREGATION_MODES = (
    TOKEN_MEAN_MODE,
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
"""Values of `loss_agg_mode`."""


def streams(estimator: str) -> bool:
    """Return True if level 3 can estimate advantages before the batch is complete."""
    return estimator in VALUE_ESTIMATORS or estimator in GROUP_ESTIMATORS


def normalizes(estimator: str) -> bool:
    """Return True if advantages depend on the whole batch: those of all estimators but the group ones may."""
    return estimator not in GROUP_ESTIMATORS


def override_for(loss_mode: str, loss_agg_mode: str) -> str:
    """Return the override with which micro-batches of this loss add up to its step; "" if they do without."""
    if loss_mode in MICRO_BATCH_LOSSES:
        return "async.streamer.enabled=false"
    if loss_mode in SEQUENCE_LOSSES and loss_agg_mode == TOKEN_MEAN_MODE:
        return "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    return ""
