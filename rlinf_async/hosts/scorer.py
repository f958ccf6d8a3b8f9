"""Tells whether inference ranks may score for the learner, and if not, why."""

from __future__ import annotations

from rlinf_async.config import AsyncConfig

PRECISION_NAMES = {
    "32": "fp32",
    "32-true": "fp32",
    "float32": "fp32",
    "16": "fp16",
    "16-mixed": "fp16",
    "float16": "fp16",
    "bf16-mixed": "bf16",
    "bfloat16": "bf16",
}
"""The frameworks' other words for precisions."""


def why_learner_scores(
    asynchrony: AsyncConfig, *, learner: object, inference: object, share: bool = False
) -> str:
    """Return the reason for which the learner scores all by itself; none where inference may help.

    Args:
        learner: the precision in which the learner computes, and `inference` that of inference ranks.
        share: True if both are on the same accelerators, where inference has no time of its own.
    """
    if share:
        return "inference is on its accelerators"
    computes = [PRECISION_NAMES.get(str(name), str(name)) for name in (learner, inference)]
    if computes[0] != computes[1]:
        return f"it computes in {computes[0]}, and inference in {computes[1]}"
    if not asynchrony.advanced.measures:
        return "async.advanced.measure_ratios=false leaves open whether inference computes what it does"
    return ""
