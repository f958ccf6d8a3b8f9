"""veRL's advantage estimators and policy losses by the inputs that they need, without importing veRL.

They are the values of `algorithm.adv_estimator` and of `actor_rollout_ref.actor.policy_loss.loss_mode`.
"""

from __future__ import annotations

VALUE_ESTIMATORS = frozenset({"gae"})
"""Estimators that need the policy's values."""

GROUP_ESTIMATORS = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo"})
"""Estimators that compare only the members of a group; a group is never spread over several pieces."""

WHITENED_ESTIMATORS = frozenset({"reinforce_plus_plus_baseline"})
"""Estimators that compare the members of a group, and normalise the result over the batch."""

COMPARING_ESTIMATORS = GROUP_ESTIMATORS | WHITENED_ESTIMATORS | {"gpg"}
"""Estimators that compare the members of a group, which needs at least two members."""

REFUSED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Estimators that this package does not support; `keys.toml` has the reason for each."""

ESTIMATOR_NAMES = tuple(
    sorted({*VALUE_ESTIMATORS, *COMPARING_ESTIMATORS, *REFUSED_ESTIMATORS, "reinforce_plus_plus"})
)
"""All of veRL's estimators; a user's package may register others."""

SEQUENCE_LOSSES = frozenset({"sapo"})
"""Losses that are means over the sequences of a step, for any `loss_agg_mode`."""

MICRO_BATCH_LOSSES = frozenset({"geo_mean"})
"""Losses that are means over one micro-batch, for any `loss_agg_mode`."""

SELECTING_LOSSES = frozenset({"clip_cov", "kl_cov"})
"""Losses that select entries of a micro-batch by comparison with its other entries."""

LOSS_NAMES = tuple(
    sorted(
        {"bypass_mode", "cispo", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo", "vanilla"}
        | SEQUENCE_LOSSES
        | MICRO_BATCH_LOSSES
        | SELECTING_LOSSES
    )
)
"""All of veRL's losses; a user's package may register others."""

TOKEN_MEAN_MODE = "token-mean"
"""veRL's default `loss_agg_mode`; with it, losses of streamed micro-batches are sums, divided at the
optimizer step."""

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
    """Return True if advantages may depend on the whole batch: with all estimators except the group ones."""
    return estimator not in GROUP_ESTIMATORS


def override_for(loss_mode: str, loss_agg_mode: str) -> str:
    """Return the override that makes losses of micro-batches add up to that of the step; "" if none is
    needed.
    """
    if loss_mode in MICRO_BATCH_LOSSES:
        return "async.streamer.enabled=false"
    if loss_mode in SEQUENCE_LOSSES and loss_agg_mode == TOKEN_MEAN_MODE:
        return "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    return ""
