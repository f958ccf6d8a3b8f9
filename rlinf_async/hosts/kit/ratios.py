"""Ratios of probabilities: their level, what they are of, and the weights that are made of them."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.config import Weighting
from rlinf_async.core.objectives import importance_weight, weight_measures
from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.core.types import RatioLevel

DENOISE_STEPS = "denoise_inds"
"""The last part of the name of the forward input with the denoise steps that are scored, [B, K]: in
RLinf's models that match flows, one step K times over, or all K in their order where log-probabilities
are joint."""


def scored_in(forward_inputs: Any) -> Scored:
    """Return what is scored of samples with these inputs, [B, ...] each; the whole action where no input
    tells.

    A chain of one step is taken for one that is scored by itself.
    """
    step_tensors = [value for name, value in forward_inputs.items() if str(name).endswith(DENOISE_STEPS)]
    if not step_tensors or not isinstance(step_tensors[0], torch.Tensor):
        return WHOLE
    # [..., K], of samples or of a rollout. The first sample stands for all: K, and whether one step or the
    # chain is scored, are settings of the model.
    steps = step_tensors[0].flatten(0, -2)[0].tolist()
    return Scored(steps=len(steps), joint=len(set(steps)) > 1)


def at_ratio_level(logprobs: torch.Tensor, level: RatioLevel, action_dim: int) -> torch.Tensor:
    """Sum log-probabilities (or entropies) of N decisions to the level at which ratios are formed.

    Args:
        logprobs: [N, ...], chunks x dimensions of one action in any layout; or one for a whole decision.

    Returns:
        [N, chunks, action_dim] for tokens, [N, chunks] for actions, [N] for chunks.
    """
    flat = logprobs.reshape(len(logprobs), -1)
    if level == "chunk":
        return flat.sum(dim=1)
    if flat.shape[1] == 1:
        action_dim = 1
    if flat.shape[1] % action_dim:
        raise ValueError(
            f"action_dim={action_dim} of the model does not divide the {flat.shape[1]} log-probabilities of "
            "a decision; set it to the dimensions of one action, or the level of ratios to that of a chunk"
        )
    tokens = flat.reshape(len(flat), -1, action_dim)
    return tokens if level == "token" else tokens.sum(dim=2)


def weighed(
    weighting: Weighting, forward_inputs: Any, proximal: torch.Tensor, behaviour: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the weight of each ratio, and what is measured of it, by metric: the host averages.

    `forward_inputs` are those of the samples, which say what is scored.
    """
    rule: Any = {
        "correction": weighting.correction,
        "max_weight": weighting.max_weight,
        "scored": scored_in(forward_inputs),
    }
    weights = importance_weight(proximal, behaviour, **rule)
    return weights, weight_measures(weights, proximal, behaviour, **rule)
