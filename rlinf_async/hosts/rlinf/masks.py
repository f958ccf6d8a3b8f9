"""Tells whether a config's losses and its entropy bonus leave out the decisions that RLinf masks.

The entropy bonus is a sum in some configs of RLinf and a mean in others. With `entropy_type: chunk_level`,
RLinf multiplies one entropy per sample, [N], by a mask [N, 1]. The product is [N, N], so that the bonus is a
sum over the micro-batch, including masked samples. Its weight in an optimizer step then grows with the size
of a micro-batch.
"""

from __future__ import annotations

from rlinf_async.entry_points import OWN_MODELS
from rlinf_async.hosts.rlinf import tree
from rlinf_async.hosts.rlinf.view import RLinfView

MEAN_OVERRIDE = "algorithm.entropy_type=action_level"
"""The override that makes the bonus a mean over valid samples, of sums over each action."""


def is_summed(view: RLinfView) -> bool:
    """Return True if the bonus is a sum over the micro-batch. Models of this package have a row for each
    action.
    """
    return (
        bool(view.entropy_bonus)
        and view.entropy_type == "chunk_level"
        and view.model_type not in OWN_MODELS
        and not view.unmasking_keys
        and _has_one_dimension()
    )


def _has_one_dimension() -> bool:
    """Return True if the installed RLinf, which a patch may have mended, gives an entropy of [N]."""
    if not tree.is_defined("reshape_entropy"):
        return False  # newer versions of RLinf compute it in another way
    import torch  # only configs with a bonus need it

    from rlinf_async.hosts.rlinf.borrowed import reshape_entropy

    return bool(reshape_entropy(torch.zeros(2, 2), "chunk_level").dim() == 1)
