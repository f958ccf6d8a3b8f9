"""The scoring of actions by RLinf's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rlinf_async.core.tensors import Tensors

TOKEN_MODELS = frozenset({"openvla", "openvla_oft"})
"""Models that sample actions as tokens."""
SELECTING_MODELS = frozenset({"gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0"})
"""Models that store log-probabilities of all denoise steps, and select from them when they score one step."""


def score(cfg: Any, model: torch.nn.Module, samples: Mapping[str, Any], *, values: bool) -> Tensors:
    """Return the output of a forward pass over samples on the model's device, with log-probabilities of their
    actions.
    """
    return model(
        forward_inputs=samples["forward_inputs"],
        compute_logprobs=True,
        compute_entropy=False,
        compute_values=values,
        use_cache=False,
        **_forward_kwargs(cfg, samples["prev_logprobs"]),
    )


def _forward_kwargs(cfg: Any, stored_logprobs: torch.Tensor) -> dict[str, Any]:
    """Return the additional arguments that RLinf's `train_micro_batch` passes to some models (0.3 and
    main).
    """
    model = cfg.actor.model.model_type
    if model in SELECTING_MODELS:
        return {"prev_logprobs": stored_logprobs}
    if model not in TOKEN_MODELS:
        return {}
    sampling = cfg.rollout.sampling_params
    return {"temperature": sampling.temperature_train, "top_k": sampling.top_k}
