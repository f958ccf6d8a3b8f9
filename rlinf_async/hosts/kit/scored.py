"""The part of an action that log-probabilities are of, as the samples themselves show it."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.core.scored import WHOLE, Scored

DENOISE_STEPS = "denoise_inds"
"""The last part of the name of the forward input with the denoise steps that are scored, [B, K]: in
RLinf's models that match flows, one step K times over, or all K in their order where log-probabilities
are joint."""


def scored_in(forward_inputs: Any) -> Scored:
    """Return what is scored of samples with these inputs, [B, ...] each; the whole action where no input
    tells.

    A chain of one step is taken for one that is scored by itself.
    """
    found = [value for name, value in forward_inputs.items() if str(name).endswith(DENOISE_STEPS)]
    if not found or not isinstance(found[0], torch.Tensor):
        return WHOLE
    steps = found[0].flatten(0, -2)[0].tolist()
    return Scored(steps=len(steps), joint=len(set(steps)) > 1)
