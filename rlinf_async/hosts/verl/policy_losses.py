"""veRL's `policy_loss.loss_mode`, by what each does to a micro-batch; known without importing veRL."""

from __future__ import annotations

SEQUENCE_LOSSES = frozenset({"sapo"})
"""Losses that are means over the sequences of a step, whatever `loss_agg_mode` says."""

MICRO_BATCH_LOSSES = frozenset({"geo_mean"})
"""Losses that are means over one micro-batch, whatever `loss_agg_mode` says."""

SELECTING_LOSSES = frozenset({"clip_cov", "kl_cov"})
"""Losses that choose among the entries of one micro-batch: its other members matter."""

TOKEN_MEAN = "token-mean"
"""veRL's default `loss_agg_mode`; streamed micro-batches are sums then, divided when a step is made."""

AGGREGATION_MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
"""Values of `loss_agg_mode`."""

LOSS_NAMES = tuple(
    sorted(
        {"bypass_mode", "cispo", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo", "vanilla"}
        | SEQUENCE_LOSSES
        | MICRO_BATCH_LOSSES
        | SELECTING_LOSSES
    )
)
"""All losses of veRL's; a package of the user's may register others."""


def override_for(loss_mode: str, loss_agg_mode: str) -> str:
    """Return the override with which micro-batches of this loss add up to its step; "" if they do without."""
    if loss_mode in MICRO_BATCH_LOSSES:
        return "async.streamer.enabled=false"
    if loss_mode in SEQUENCE_LOSSES and loss_agg_mode == TOKEN_MEAN:
        return "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    return ""
