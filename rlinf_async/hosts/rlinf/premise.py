"""The check of a run's premise (`core.premise`) on RLinf's actor and its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlinf_async.core import premise
from rlinf_async.core.premise import Premise, Sums, differences, drawn_by
from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.hosts.rlinf.proximal import forward, model_name, samples_of

HALF = ("bf16", "fp16", "16", "bf16-mixed", "16-mixed")
"""RLinf's names of precisions with 8 or 11 significant bits."""


def compare(actor: Any, rollout: Tree, batch: int, *, most: int, values: bool) -> Sums:
    """One forward pass over samples of batch `batch` that its own policy drew; to be added over the ranks.

    Call it before the batch has changed the weights, on every rank. Ranks without such samples take part
    in the pass and count nothing.

    Args:
        rollout: fields of [T, B, ...], with values of T + 1 observations.
        most: samples that one pass may have.
    """
    stored_values = {"prev_values": rollout["prev_values"][:-1]} if values else {}  # type: ignore[index]
    samples = samples_of({**rollout, **stored_values}, "versions", *stored_values)
    rows = drawn_by(samples.pop("versions").flatten().long(), batch, most=most)  # type: ignore[union-attr]
    part: dict[str, Any] = map_tensors(lambda tensor: tensor[rows if len(rows) else [0]], samples)
    (output,) = forward(actor, part, max(1, len(rows)), logprobs=True, values=values)
    stored = output.get("prev_logprobs", part["prev_logprobs"])
    pair: tuple[torch.Tensor, torch.Tensor] | None = None
    if values:
        pair = output["values"], part["prev_values"]
    return differences(output["logprobs"], stored, pair, counts=bool(len(rows)))


def judge(sums: Mapping[str, float], cfg: Any, warn: Callable[[str], None]) -> Premise:
    """Whether a run may go on, and with which values; see `core.premise.judge`."""
    return premise.judge(sums, model=model_name(cfg), half=_half(cfg.actor), warn=warn, prefix="prev_")


def _half(actor: Any) -> bool:
    """Whether a part of the forward pass is in 16 bits. Without a precision the model decides: pi0 mixes."""
    fsdp, precision = actor.get("fsdp_config", {}), actor.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(str(cast) in HALF for cast in casts)
