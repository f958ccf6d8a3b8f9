"""The precision in which an RLinf actor computes."""

from __future__ import annotations

from typing import Any

HALF_PRECISIONS = ("bf16", "fp16", "16", "bf16-mixed", "16-mixed")
"""RLinf's names of precisions with 8 or 11 significant bits."""


def is_half(section: Any) -> bool:
    """Return True if a part of the forward pass is in 16 bits. Without a precision the model decides: pi0
    mixes.
    """
    fsdp, precision = section.get("fsdp_config", {}), section.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(str(cast) in HALF_PRECISIONS for cast in casts)
