"""Probability ratios: their level, the denoise steps that they score, and importance weights."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.config import Weighting
from rlinf_async.core.objectives import importance_weight, weight_measures
from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.core.types import RatioLevel

DENOISE_STEPS = "denoise_inds"
"""The ending of the name of the forward input with the scored denoise steps, [B, K]. RLinf's flow-matching
models have one step repeated K times, or all K steps in order if log-probabilities are joint."""


def scored_in(forward_inputs: Any) -> Scored:
    """Return the scored part of an action, from the forward inputs [B, ...]; the whole action if none has
    `DENOISE_STEPS`.

    A chain of one denoise step counts as a single step, not as joint.
    """
    step_tensors = [value for name, value in forward_inputs.items() if str(name).endswith(DENOISE_STEPS)]
    if not step_tensors or not isinstance(step_tensors[0], torch.Tensor):
        return WHOLE
    # [..., K], of samples or of a rollout. The first sample stands for all: the model's settings fix K, and
    # whether one step or the whole chain is scored.
    steps = step_tensors[0].flatten(0, -2)[0].tolist()
    return Scored(steps=len(steps), joint=len(set(steps)) > 1)


def at_ratio_level(logprobs: torch.Tensor, level: RatioLevel, action_dim: int) -> torch.Tensor:
    """Sum log-probabilities (or entropies) of N decisions to the level of the ratios.

    Args:
        logprobs: [N, ...], chunks x dimensions of one action in any layout; or one value for a whole
            decision.

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
    """Return the importance weight of each ratio, and metrics of the weights, which the host averages.

    `forward_inputs` are the samples' inputs; `scored_in` reads the scored part from them.
    """
    rule: Any = {
        "correction": weighting.correction,
        "max_weight": weighting.max_weight,
        "scored": scored_in(forward_inputs),
    }
    weights = importance_weight(proximal, behaviour, **rule)
    return weights, weight_measures(weights, proximal, behaviour, **rule)
