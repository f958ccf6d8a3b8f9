"""Tells whether a config's losses and its entropy bonus leave out the decisions that RLinf masks.

The entropy bonus is a sum in some configs of RLinf and a mean in others. With `entropy_type: chunk_level`,
RLinf multiplies one entropy per sample, [N], by a mask [N, 1]. The product is [N, N], so that the bonus is a
sum over the micro-batch, including masked samples. Its weight in an optimizer step then grows with the size
of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.exactness import OWN_MODELS
from rlinf_async.hosts.rlinf import borrowed

MEAN_OVERRIDE = "algorithm.entropy_type=action_level"
"""The override that makes the bonus a mean over valid samples, of sums over each action."""

UNMASKING_KEYS = ("env.train.auto_reset", "env.train.ignore_terminations")
"""Keys that, if either is true, have decisions after the end of an episode trained."""


def is_masked(cfg: Mapping[str, Any]) -> bool:
    """Return True if decisions after the end of an episode are left out of RLinf's losses."""
    return not any(lookup(cfg, key) for key in UNMASKING_KEYS)


def is_summed(cfg: Mapping[str, Any]) -> bool:
    """Return True if the bonus is a sum over the micro-batch. Models of this package have a row for each
    action.
    """
    return (
        bool(lookup(cfg, "algorithm.entropy_bonus"))
        and lookup(cfg, "algorithm.entropy_type") == "chunk_level"
        and lookup(cfg, "actor.model.model_type") not in OWN_MODELS
        and is_masked(cfg)
        and _has_one_dimension()
    )


def _has_one_dimension() -> bool:
    """Return True if the installed RLinf, which a patch may have mended, gives an entropy of [N]."""
    if not borrowed.is_here("reshape_entropy"):
        return False  # newer versions of RLinf compute it in another way
    import torch  # only configs with a bonus need it

    from rlinf_async.hosts.rlinf.borrowed import reshape_entropy

    return bool(reshape_entropy(torch.zeros(2, 2), "chunk_level").dim() == 1)
