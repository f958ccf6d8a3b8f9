"""veRL's `policy_loss.loss_mode`, by what each does to a micro-batch; known without importing veRL."""

from __future__ import annotations

SEQUENCES = frozenset({"sapo"})
"""Losses that are means over the sequences of a step, whatever `loss_agg_mode` says."""

ALONE = frozenset({"geo_mean"})
"""Losses that are means over one micro-batch, whatever `loss_agg_mode` says."""

SELECTING = frozenset({"clip_cov", "kl_cov"})
"""Losses that choose among the entries of one micro-batch: who else is in it matters."""

TOKENS = "token-mean"
"""veRL's default `loss_agg_mode`; streamed micro-batches are sums then, divided when a step is made."""

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
"""What `loss_agg_mode` may be."""

NAMES = tuple(
    sorted(
        {"bypass_mode", "cispo", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo", "vanilla"}
        | SEQUENCES
        | ALONE
        | SELECTING
    )
)
"""All that veRL has; a package of the user's may register others."""


def override_for(loss_mode: str, loss_agg_mode: str) -> str:
    """What to set so that micro-batches of this loss add up to its step, as an override; empty if they do."""
    if loss_mode in ALONE:
        return "async.streamer.enabled=false"
    if loss_mode in SEQUENCES and loss_agg_mode == TOKENS:
        return "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    return ""
