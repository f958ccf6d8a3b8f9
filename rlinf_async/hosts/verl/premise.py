"""The check of a run's premise (`core.premise`) on veRL's engine and its names."""

from __future__ import annotations

from typing import Any

from rlinf_async.core import premise
from rlinf_async.core.premise import Sums
from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.hosts.verl.scoring import flat_inputs, forward

FULL_PRECISIONS = (None, "fp32", "float32")
"""Names of precisions with 24 significant bits, and no name, which leaves weights as the policy has them."""


def compare(engine: PolicyEngine, rollout: Tree, batch: int, *, most: int, values: bool) -> Sums:
    """`core.premise.compare` of the samples of batch `batch` in `rollout`, scored by `engine`.

    Args:
        rollout: fields of [T, B, ...], with `values` of T + 1 observations if they are compared.
        most: samples that one pass may have.
    """
    fields: dict[str, Any] = dict(rollout)
    samples = {"inputs": flat_inputs(fields["forward_inputs"]), "logprobs": fields["logprobs"].flatten(0, 1)}
    if values:
        samples["values"] = fields["values"][:-1].flatten()

    def score(chosen: dict[str, Any]) -> dict[str, premise.Pair]:
        (output,) = forward(engine, [chosen["inputs"]], values=values)
        return {name: (output[name], chosen[name]) for name in chosen if name != "inputs"}

    return premise.compare(samples, fields["versions"].flatten(), batch, most=most, score=score)


def is_half(engine: PolicyEngine) -> bool:
    """Return True if a part of the forward pass is in 16 bits, to which veRL's FSDP2 casts by default."""
    config = engine.engine_config
    cast = "bf16" if config.mixed_precision is None else config.mixed_precision.get("param_dtype", "bf16")
    used = (cast, config.model_dtype, engine.model_config.section.get("precision"))
    return any(precision not in FULL_PRECISIONS for precision in used)
