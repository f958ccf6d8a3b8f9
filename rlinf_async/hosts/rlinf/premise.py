"""The check of a run's premise (`core.premise`) on RLinf's actor and its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.core import premise
from rlinf_async.core.premise import Premise, Sums
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.rlinf.proximal import forward, model_name, samples_of

HALF_PRECISIONS = ("bf16", "fp16", "16", "bf16-mixed", "16-mixed")
"""RLinf's names of precisions with 8 or 11 significant bits."""


def compare(actor: Any, rollout: Tree, batch: int, *, most: int, values: bool) -> Sums:
    """`core.premise.compare` of the samples of batch `batch` in `rollout`, scored by `actor`.

    Args:
        rollout: fields of [T, B, ...], with `prev_values` of T + 1 observations if `values` are compared.
        most: samples that one pass may have.
    """
    stored_values = {"prev_values": leaf(rollout, "prev_values")[:-1]} if values else {}
    samples = samples_of({**rollout, **stored_values}, "versions", *stored_values)
    versions = leaf(samples, "versions").flatten().long()

    def score(chosen: dict[str, Any]) -> dict[str, premise.Pair]:
        (output,) = forward(actor, [chosen], values=values)
        pairs = {"logprobs": (output["logprobs"], output.get("prev_logprobs", chosen["prev_logprobs"]))}
        return pairs | ({"values": (output["values"], chosen["prev_values"])} if values else {})

    return premise.compare(samples, versions, batch, most=most, score=score)


def judge(sums: Mapping[str, float], cfg: Any, warn: Callable[[str], None]) -> Premise:
    """Decide whether a run may go on, and with which values; see `core.premise.judge`."""
    return premise.judge(sums, model=model_name(cfg), half=_half(cfg.actor), warn=warn, prefix="prev_")


def _half(section: Any) -> bool:
    """Return True if a part of the forward pass is in 16 bits. Without a precision the model decides: pi0
    mixes.
    """
    fsdp, precision = section.get("fsdp_config", {}), section.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(str(cast) in HALF_PRECISIONS for cast in casts)
