"""The check of a run's premise (`core.premise`) on veRL's engine and its names."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.core.premise import Sums, differences, drawn_by
from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.hosts.verl.scoring import flat_inputs, forward

FULL = (None, "fp32", "float32")
"""Names of precisions with 24 significant bits, and no name, which leaves weights as the policy has them."""


def compare(engine: PolicyEngine, rollout: Tree, batch: int, *, most: int, values: bool) -> Sums:
    """One forward pass over samples of batch `batch` that its own policy drew; to be added over the ranks.

    Call it before the batch has changed the weights, on every rank. Ranks without such samples take part
    in the pass and count nothing.

    Args:
        rollout: fields of [T, B, ...], with values of T + 1 observations.
        most: samples that one pass may have.
    """
    fields: dict[str, Any] = dict(rollout)
    rows = drawn_by(fields["versions"].flatten(), batch, most=most)
    at = rows if len(rows) else [0]
    inputs = map_tensors(lambda tensor: tensor[at], flat_inputs(fields["forward_inputs"]))
    (output,) = forward(engine, inputs, max(1, len(rows)), values=values)
    stored = fields["logprobs"].flatten(0, 1)[at]
    pair: tuple[torch.Tensor, torch.Tensor] | None = None
    if values:
        pair = output["values"], fields["values"][:-1].flatten()[at]
    return differences(output["logprobs"], stored, pair, counts=bool(len(rows)))


def is_half(engine: PolicyEngine) -> bool:
    """Whether a part of the forward pass is in 16 bits, which is what veRL's FSDP2 casts to by default."""
    config = engine.engine_config
    cast = "bf16" if config.mixed_precision is None else config.mixed_precision.get("param_dtype", "bf16")
    used = (cast, config.model_dtype, engine.model_config.section.get("precision"))
    return any(precision not in FULL for precision in used)
