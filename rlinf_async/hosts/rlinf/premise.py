"""The check of a run's premise (`core.premise`) on RLinf's actor and its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.core import premise
from rlinf_async.core.premise import Premise
from rlinf_async.hosts.rlinf.proximal import model_name

HALF_PRECISIONS = ("bf16", "fp16", "16", "bf16-mixed", "16-mixed")
"""RLinf's names of precisions with 8 or 11 significant bits."""


def judge(sums: Mapping[str, float], cfg: Any, warn: Callable[[str], None]) -> Premise:
    """Decide whether a run may go on, and with which values; see `core.premise.judge`."""
    return premise.judge(sums, model=model_name(cfg), half=_half(cfg.actor), warn=warn)


def _half(section: Any) -> bool:
    """Return True if a part of the forward pass is in 16 bits. Without a precision the model decides: pi0
    mixes.
    """
    fsdp, precision = section.get("fsdp_config", {}), section.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(str(cast) in HALF_PRECISIONS for cast in casts)
