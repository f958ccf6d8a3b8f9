"""The premise of a run: at the weights that acted, the learner scores actions as inference did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.core.types import MAX_PROBE_SAMPLES

Sums = dict[str, float]
Pair = tuple[torch.Tensor, torch.Tensor]
"""Scored and stored."""
Score = Callable[[Tree], dict[str, Pair]]
"""One forward pass over samples: pairs of `logprobs`, and of `values` where there is a critic."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Bounds within which two passes over the same sample agree, when batches and kernels differ."""

    logprobs: float
    """Mean absolute difference of the log-probabilities of one token or dimension."""
    values: float
    """Root mean square of the difference of values, relative to that of the stored ones."""


FULL_PRECISION = Tolerance(logprobs=1e-2, values=1e-2)
HALF_PRECISION = Tolerance(logprobs=0.1, values=0.05)
MAX_LOGPROB_DIFFERENCE = 1.0
"""A mean difference beyond which no ratio means anything, whatever the precision."""


@dataclass(frozen=True, kw_only=True)
class Premise:
    """The differences that the first batch has shown, over all ranks."""

    logprobs: float = 0.0
    """Mean absolute difference of log-probabilities, as `Tolerance.logprobs` bounds it."""
    values: float = 0.0
    keeps_values: bool = False
    """Values scored again are not those that were stored, which therefore stay."""
    alike: bool = True
    """Log-probabilities differ by rounding alone, so that inference can score for the learner."""

    @property
    def metrics(self) -> dict[str, float]:
        return {"premise/logprobs": self.logprobs, "premise/values": self.values}


def compare(samples: Tree, versions: torch.Tensor, version: int, *, most: int, score: Score) -> Sums:
    """Return how far stored and scored numbers of the samples that `version` drew are apart, as sums to be
    added over the ranks.

    Call it on every rank, before the batch of `version` has changed the weights. A rank without such samples
    takes part in the pass like all others, as sharded models require, and counts nothing.

    Args:
        samples: what `score` reads, [N, ...].
        versions: the policy version that drew each of them, [N].
        most: samples that one pass may have.
    """
    rows = torch.nonzero(versions == version).flatten()[: min(most, MAX_PROBE_SAMPLES)]
    # One sample at least: a rank that left out the pass would leave the others waiting in its collectives.
    pairs = score(map_tensors(lambda tensor: tensor[rows if len(rows) else [0]], samples))
    sums = _difference(*pairs["logprobs"], "logprobs", torch.abs)
    if "values" in pairs:
        sums |= _difference(*pairs["values"], "values", torch.square)
    # 0, and not left out: the sums are added over ranks by name, so that all must have the same names. And no
    # product with 0, which a number that is not finite would outlive.
    return {name: float(value) if len(rows) else 0.0 for name, value in sums.items()}


def _difference(
    scores: torch.Tensor,
    stored_scores: torch.Tensor,
    name: str,
    measure: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, torch.Tensor]:
    scores, stored_scores = (tensor.detach().float().cpu().flatten() for tensor in (scores, stored_scores))
    return {
        f"{name}/off": measure(scores - stored_scores).sum(),
        f"{name}/stored": measure(stored_scores).sum(),
        f"{name}/count": torch.tensor(scores.numel()),
    }


def judge(sums: Mapping[str, float], *, model: str, half: bool, warn: Callable[[str], None]) -> Premise:
    """Decide whether a run may go on, and with which values, from the sums of `compare` over all ranks.

    Args:
        model: the key of the config that names the model, and its value.
        half: True if a part of the forward pass is in 16 bits.

    Raises:
        RuntimeError: the learner does not compute the probabilities that inference sampled with.
    """
    if not sums["logprobs/count"]:
        return Premise()  # the run has begun with samples of older policies, after a resume
    tolerance = HALF_PRECISION if half else FULL_PRECISION
    logprobs = sums["logprobs/off"] / sums["logprobs/count"]
    # The floor is for values that were all stored as 0: any difference is then beyond every tolerance.
    values = (sums["values/off"] / max(sums["values/stored"], 1e-12)) ** 0.5 if "values/off" in sums else 0.0
    field = f"{model}: prev_logprobs"
    # Written so that NaN is refused, too.
    if not logprobs <= MAX_LOGPROB_DIFFERENCE:
        raise RuntimeError(
            f"{field} of the first batch, scored again by the learner at the weights that "
            f"acted, are off by {logprobs:.3g} on average; inference and learner do not hold the same policy "
            "(frozen weights that no checkpoint gives?), or the model scores other actions than it took; "
            "async.advanced.measure_ratios=false leaves this check out"
        )
    alike = logprobs <= tolerance.logprobs
    if not alike:
        warn(
            f"{field} of the first batch, scored again at the weights that acted, are off by "
            f"{logprobs:.3g} on average, where rounding explains {tolerance.logprobs:g}; importance weights "
            "correct it, at the price of variance: see train/mismatch; the learner scores every batch by "
            "itself"
        )
    # As above: NaN counts as a difference.
    keeps_values = not values <= tolerance.values
    if keeps_values:
        warn(
            f"{model}: prev_values of the first batch, scored again at the weights that acted, are off by "
            f"{values:.0%} of their size, where rounding explains {tolerance.values:.0%}; the values that "
            "inference stored are kept"
        )
    return Premise(logprobs=logprobs, values=values, keeps_values=keeps_values, alike=alike)
