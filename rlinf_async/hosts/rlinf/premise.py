"""What a run takes for granted: at the weights that acted, the learner scores actions as inference did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.ratios import SAMPLES
from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.hosts.rlinf.proximal import forward, samples_of

Sums = dict[str, float]

HALF = ("bf16", "fp16", "16", "bf16-mixed", "16-mixed")
"""RLinf's names of precisions with 8 or 11 significant bits."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far rounding takes two passes over the same sample apart, when batches and kernels differ."""

    logprobs: float
    """Mean absolute difference of the log-probabilities of one token or dimension."""
    values: float
    """Root mean square of the difference of values, relative to that of the stored ones."""


EXACT = Tolerance(logprobs=1e-2, values=1e-2)
ROUNDED = Tolerance(logprobs=0.1, values=0.05)
HOPELESS = 1.0
"""Log-probabilities that are further off: no ratio means anything, whatever the precision."""


@dataclass(frozen=True, kw_only=True)
class Premise:
    """What the first batch has shown, over all ranks."""

    logprobs: float = 0.0
    """As `Tolerance` counts."""
    values: float = 0.0
    keeps_values: bool = False
    """Values scored again are not those that were stored, which therefore stay."""

    @property
    def metrics(self) -> dict[str, float]:
        return {"premise/logprobs": self.logprobs, "premise/values": self.values}


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
    acted = samples.pop("versions").flatten().long()  # type: ignore[union-attr]
    rows = torch.nonzero(acted == batch).flatten()[: min(most, SAMPLES)]
    chosen = map_tensors(lambda tensor: tensor[rows if len(rows) else [0]], samples)
    (output,) = forward(actor, chosen, max(1, len(rows)), logprobs=True, values=values)
    stored = output.get("prev_logprobs", chosen["prev_logprobs"])
    found = _differences(output["logprobs"], stored, "logprobs", torch.abs)  # type: ignore[arg-type]
    if values:
        found |= _differences(output["values"], chosen["prev_values"], "values", torch.square)  # type: ignore[arg-type]
    return {name: float(value) * bool(len(rows)) for name, value in found.items()}


def _differences(
    scored: torch.Tensor, stored: torch.Tensor, name: str, measure: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    scored, stored = (tensor.detach().float().cpu().flatten() for tensor in (scored, stored))
    return {
        f"{name}/off": measure(scored - stored).sum(),
        f"{name}/stored": measure(stored).sum(),
        f"{name}/count": torch.tensor(scored.numel()),
    }


def judge(sums: Mapping[str, float], cfg: Any, warn: Callable[[str], None]) -> Premise:
    """Whether a run may go on, and with which values; `sums` of `compare` over all ranks.

    Raises:
        RuntimeError: the learner does not compute the probabilities that inference sampled with.
    """
    if not sums["logprobs/count"]:
        return Premise()  # the run has begun with samples of older policies, after a resume
    tolerance = ROUNDED if _half(cfg.actor) else EXACT
    logprobs = sums["logprobs/off"] / sums["logprobs/count"]
    values = (sums["values/off"] / max(sums["values/stored"], 1e-12)) ** 0.5 if "values/off" in sums else 0.0
    model = f"actor.model.model_type={cfg.actor.model.model_type!r}"
    if not logprobs <= HOPELESS:
        raise RuntimeError(
            f"{model}: prev_logprobs of the first batch, scored again by the learner at the weights that "
            f"acted, are off by {logprobs:.3g} on average; inference and learner do not hold the same policy "
            "(frozen weights that no checkpoint gives?), or the model scores other actions than it took; "
            "async.train.measure_ratios=false leaves this check out"
        )
    if logprobs > tolerance.logprobs:
        warn(
            f"{model}: prev_logprobs of the first batch, scored again at the weights that acted, are off by "
            f"{logprobs:.3g} on average, where rounding explains {tolerance.logprobs:g}; importance weights "
            "correct it, at the price of variance: see train/mismatch"
        )
    keeps_values = not values <= tolerance.values
    if keeps_values:
        warn(
            f"{model}: prev_values of the first batch, scored again at the weights that acted, are off by "
            f"{values:.0%} of their size, where rounding explains {tolerance.values:.0%}; the values that "
            "inference stored are kept"
        )
    return Premise(logprobs=logprobs, values=values, keeps_values=keeps_values)


def _half(actor: Any) -> bool:
    """Whether a part of the forward pass is in 16 bits. Without a precision the model decides: pi0 mixes."""
    fsdp, precision = actor.get("fsdp_config", {}), actor.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any(str(cast) in HALF for cast in casts)
