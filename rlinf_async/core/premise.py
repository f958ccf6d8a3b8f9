"""The premise of a run: with the weights that acted, the learner scores actions as inference did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from rlinf_async.core.scores import ScorePair
from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.core.types import MAX_PROBE_SAMPLES

Sums = dict[str, float]
Score = Callable[[Tree], dict[str, ScorePair]]
"""One forward pass over samples: pairs of `logprobs`, and of `values` where there is a critic."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Bounds on the difference of two passes over the same sample in other batches and by other kernels."""

    logprobs: float
    """Mean absolute difference of the log-probabilities of one token or dimension."""
    values: float
    """Root mean square of the difference of values, relative to that of the stored values."""


FULL_PRECISION = Tolerance(logprobs=1e-2, values=1e-2)
HALF_PRECISION = Tolerance(logprobs=0.1, values=0.05)
MAX_LOGPROB_DIFFERENCE = 1.0
"""The mean difference above which ratios are meaningless at any precision, so that the run ends."""


@dataclass(frozen=True, kw_only=True)
class Premise:
    """The differences measured on the first batch, over all ranks."""

    logprobs: float = 0.0
    """Mean absolute difference of log-probabilities, as `Tolerance.logprobs` bounds it."""
    values: float = 0.0
    keeps_values: bool = False
    """True if the learner's values differ from the stored ones by more than rounding: the stored ones are
    then used."""
    alike: bool = True
    """True if log-probabilities differ by rounding alone, so that inference can score for the learner."""

    @property
    def metrics(self) -> dict[str, float]:
        return {"premise/logprobs": self.logprobs, "premise/values": self.values}


def compare(samples: Tree, versions: torch.Tensor, version: int, *, most: int, score: Score) -> Sums:
    """Compare the stored scores of the samples that `version` drew with the learner's, as sums to be added
    over the ranks.

    Call it on every rank, before the batch of `version` has changed the weights. A rank without such samples
    makes the pass too, as sharded models require, and adds 0 to each sum.

    Args:
        samples: the fields that `score` reads, [N, ...].
        versions: the policy version that drew each sample, [N].
        most: most samples of a pass.
    """
    rows = torch.nonzero(versions == version).flatten()[: min(most, MAX_PROBE_SAMPLES)]
    # At least one sample: if a rank skipped the pass, the others would wait for it in their collectives.
    pairs = score(map_tensors(lambda tensor: tensor[rows if len(rows) else [0]], samples))
    sums = _difference(*pairs["logprobs"], "logprobs", torch.abs)
    if "values" in pairs:
        sums |= _difference(*pairs["values"], "values", torch.square)
    # 0 rather than no entry: sums are added over ranks by name, so that all ranks need the same names. And
    # not a product with 0, as 0 times a number that is not finite is NaN.
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
        model: the config key that names the model, with its value; for messages.
        half: True if a part of the forward pass is in 16 bits.

    Raises:
        RuntimeError: the learner does not compute the probabilities that inference sampled with.
    """
    if not sums["logprobs/count"]:
        return Premise()  # after a resume: all samples of the first batch are of older policies
    tolerance = HALF_PRECISION if half else FULL_PRECISION
    logprobs = sums["logprobs/off"] / sums["logprobs/count"]
    # The floor serves values that were all stored as 0: any difference then exceeds every tolerance.
    values = (sums["values/off"] / max(sums["values/stored"], 1e-12)) ** 0.5 if "values/off" in sums else 0.0
    field = f"{model}: prev_logprobs"
    # `not <=` rather than `>`, so that NaN ends the run, too.
    if not logprobs <= MAX_LOGPROB_DIFFERENCE:
        raise RuntimeError(
            f"{field} of the first batch, scored again by the learner at the weights that "
            f"acted, are off by {logprobs:.3g} on average; inference and learner do not hold the same policy "
            "(frozen weights that no checkpoint gives?), or the model scores other actions than it took; "
            "async.advanced.measure_ratios=false turns this check off"
        )
    alike = logprobs <= tolerance.logprobs
    if not alike:
        warn(
            f"{field} of the first batch, scored again at the weights that acted, are off by "
            f"{logprobs:.3g} on average, where rounding explains {tolerance.logprobs:g}; importance weights "
            "correct the difference, at the price of variance (see train/mismatch); the learner scores every "
            "batch by itself"
        )
    # `not <=` again: NaN counts as a difference.
    keeps_values = not values <= tolerance.values
    if keeps_values:
        warn(
            f"{model}: prev_values of the first batch, scored again at the weights that acted, are off by "
            f"{values:.0%} of their size, where rounding explains {tolerance.values:.0%}; the values that "
            "inference stored are kept"
        )
    return Premise(logprobs=logprobs, values=values, keeps_values=keeps_values, alike=alike)
