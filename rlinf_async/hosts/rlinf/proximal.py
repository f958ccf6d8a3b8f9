"""Scores of actions that were taken: exact log-probabilities and values, without gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from rlinf_async.core.tensors import Tensors, Tree, map_tensors
from rlinf_async.hosts.footprints import BYTES_OF_PRECISION, precision_of
from rlinf_async.hosts.rlinf.models import SELECTING_MODELS, TOKEN_MODELS


@torch.no_grad()
def forward(actor: Any, parts: Iterable[Tree], *, values: bool) -> Iterator[dict[str, torch.Tensor]]:
    """A pass over each of `parts`, of which sharded models require equally many on every rank."""
    # As RLinf's `compute_proximal_logprobs`, and as inference acts: without dropout.
    actor.model.eval()
    for chunk in parts:
        on_device: Any = map_tensors(lambda tensor: tensor.to(actor.device), chunk)
        with actor.amp_context:
            # The consumer of the scores computes within this block, until it asks for the next ones.
            yield score(actor.cfg, actor.model, on_device, values=values)
    # Reached only if the consumer exhausts the generator; otherwise the model stays in evaluation mode.
    actor.model.train()


def score(cfg: Any, model: torch.nn.Module, samples: dict[str, Any], *, values: bool) -> Tensors:
    """One pass over samples that are on the device of the model."""
    output: Tensors = model(
        forward_inputs=samples["forward_inputs"],
        compute_logprobs=True,
        compute_entropy=False,
        compute_values=values,
        use_cache=False,
        **forward_kwargs(cfg, samples["prev_logprobs"]),
    )
    return output


def forward_kwargs(cfg: Any, stored_logprobs: torch.Tensor) -> dict[str, Any]:
    """Return the arguments that RLinf's training step passes to some models besides inputs."""
    model = cfg.actor.model.model_type
    if model in SELECTING_MODELS:
        return {"prev_logprobs": stored_logprobs}
    if model not in TOKEN_MODELS:
        return {}
    sampling = cfg.rollout.sampling_params
    return {"temperature": sampling.temperature_train, "top_k": sampling.top_k}


def model_name(cfg: Any) -> str:
    """The key that names the model, and its value."""
    return f"actor.model.model_type={cfg.actor.model.model_type!r}"


def is_half(section: Any) -> bool:
    """Return True if a part of the forward pass is in 16 bits. Without a precision the model decides: pi0
    mixes.
    """
    fsdp, precision = section.get("fsdp_config", {}), section.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(BYTES_OF_PRECISION.get(precision_of(cast)) == 2 for cast in casts)
