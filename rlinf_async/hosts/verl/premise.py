"""The precision in which veRL's engine computes."""

from __future__ import annotations

from rlinf_async.hosts.verl.engine import PolicyEngine

FULL_PRECISIONS = (None, "fp32", "float32")
"""Names of precisions with 24 significant bits, and no name, which leaves weights as the policy has them."""


def is_half(engine: PolicyEngine) -> bool:
    """Return True if a part of the forward pass is in 16 bits, to which veRL's FSDP2 casts by default."""
    config = engine.engine_config
    cast = "bf16" if config.mixed_precision is None else config.mixed_precision.get("param_dtype", "bf16")
    used = (cast, config.model_dtype, engine.model_config.section.get("precision"))
    return any(precision not in FULL_PRECISIONS for precision in used)
