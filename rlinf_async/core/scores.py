"""What a policy thinks of actions that were taken, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def joined(outputs: Sequence[Mapping[str, torch.Tensor]], name: str, *, model: str) -> torch.Tensor:
    """Field `name` of several passes over parts of a batch, in order, as float32 on the CPU.

    Args:
        model: the key of the config that names the model, and its value.

    Raises:
        FloatingPointError: a number is not finite; it would end up in the weights.
    """
    scores = torch.cat([output[name].float().cpu() for output in outputs])
    share = 1 - scores.isfinite().float().mean().item()
    if share:
        raise FloatingPointError(
            f"{model}: {share:.0%} of the {name} of this batch, scored again before the update, are not "
            "finite; nothing was trained on them"
        )
    return scores
