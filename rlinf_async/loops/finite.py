"""Numbers that are not finite, and who is to blame for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure


def check_finite(
    survive: SurviveConfig, *, observed: Mapping[str, Any], scores: Mapping[str, Any], version: int
) -> None:
    """Look at one decision before its actions reach the environments: who is first is to blame.

    Args:
        observed: tensors that the environments have shown, by name; other values, and whole numbers, are
            finite.
        scores: the same of the policy's answer to it.
        version: of the policy that has answered.

    Raises:
        ShardFailure: the environments gave numbers that are not finite; others may be built.
        RuntimeError: they did, and `async.survive.non_finite` is stop; or the policy gave such numbers for
            observations that are finite, as it would do again.
    """
    if survive.non_finite == "off":
        return
    if bad := list(_bad(observed)):
        sentence = f"the environments have given numbers that are not finite: {', '.join(bad)}"
        if survive.non_finite == "stop":
            raise RuntimeError(f"{sentence} (async.survive.non_finite=stop)")
        raise ShardFailure(sentence, what="not finite")
    if bad := list(_bad(scores)):
        raise RuntimeError(
            f"the policy of version {version} has given numbers that are not finite ({', '.join(bad)}) for "
            "observations that are: resume from a checkpoint before it, with a smaller learning rate"
        )


def check_weights(version: int, weights: Mapping[str, torch.Tensor]) -> None:
    """Look at weights before anybody acts by them.

    Raises:
        RuntimeError: some are not finite.
    """
    if bad := list(_bad(weights)):
        names = ", ".join(bad[:3]) + (f", and of {len(bad) - 3} more tensors" if len(bad) > 3 else "")
        raise RuntimeError(
            f"the weights of version {version} are not finite ({names}), and are not published: resume from "
            "a checkpoint before it, with a smaller learning rate"
        )


def _bad(tensors: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        # A sum is quick, and finite if all numbers are, unless it overflows.
        if not math.isfinite(value.sum().item()) and (count := int((~torch.isfinite(value)).sum())):
            yield f"{count} of {value.numel()} {name}"
