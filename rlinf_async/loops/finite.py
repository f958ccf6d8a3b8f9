"""Checks for numbers that are not finite: in environments, the policy and weights; and skipped optimizer
steps."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import ShardFailure


def not_finite(advanced: AdvancedConfig, shown: Mapping[str, Any]) -> list[str]:
    """Return a phrase per field with numbers that are not finite; [] if `async.advanced.non_finite` is off.

    Args:
        shown: outputs by name: arrays, or mappings and lists of arrays at any depth. A value that is no
            number counts as finite.
    """
    return [] if advanced.non_finite == "off" else list(_bad(shown))


def check_shown(advanced: AdvancedConfig, bad: Sequence[str]) -> None:
    """Check outputs of environments before the policy gets them; `bad` comes from `not_finite`.

    Raises:
        ShardFailure: some are not finite; the environments may be rebuilt.
        RuntimeError: some are not finite, and `async.advanced.non_finite` is stop.
    """
    if not bad:
        return
    sentence = f"the environments have given numbers that are not finite: {', '.join(bad)}"
    if advanced.non_finite == "stop":
        raise RuntimeError(f"{sentence} (async.advanced.non_finite=stop)")
    raise ShardFailure(sentence, what="not finite")


def check_answer(advanced: AdvancedConfig, scores: Mapping[str, Any], *, version: int) -> None:
    """Check a policy's answer to finite observations before its actions reach the environments.

    Args:
        scores: tensors, by name.
        version: the version of the policy.

    Raises:
        RuntimeError: some are not finite; they would be so again.
    """
    if bad := not_finite(advanced, scores):
        remedy = "resume from a checkpoint before it, with a smaller learning rate"
        if not version:
            remedy = "nothing is trained yet, so look at the policy's code and at its first weights"
        raise RuntimeError(
            f"the policy of version {version} has given numbers that are not finite ({', '.join(bad)}) for "
            f"observations that are: {remedy}"
        )


def check_weights(version: int, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that weights are finite before any rank acts with them.

    Raises:
        RuntimeError: some are not finite.
    """
    if bad := list(_bad(weights)):
        names = ", ".join(bad[:3]) + (f", and of {len(bad) - 3} more tensors" if len(bad) > 3 else "")
        raise RuntimeError(
            f"the weights of version {version} are not finite ({names}), and are not published: resume from "
            "a checkpoint before it, with a smaller learning rate"
        )


def _bad(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _bad(value, f"{prefix}{name}.")
        elif (count := _count(value)).bad:
            yield f"{count.bad} of {count.all} {prefix}{name}"


class _Count(NamedTuple):
    """(numbers that are not finite, all numbers)."""

    bad: int = 0
    all: int = 0


FINITE = _Count()


def _count(value: Any) -> _Count:
    # First, as a list of texts has many of them.
    if value is None or isinstance(value, (str, int)):
        return FINITE
    match value:
        case torch.Tensor():
            if not (value.is_floating_point() or value.is_complex()):
                return FINITE
            # A finite sum proves that all numbers are finite, and is quick; an overflow is told apart below.
            if cmath.isfinite(value.sum().item()):
                return _Count(0, value.numel())
            return _Count(int((~torch.isfinite(value)).sum()), value.numel())
        case np.ndarray() if value.dtype.kind in "fc":
            return _Count(int((~np.isfinite(value)).sum()), value.size)
        case float() | complex() | np.inexact():
            return _Count(int(not cmath.isfinite(complex(value))), 1)
        case np.ndarray() if value.dtype.kind == "O":
            return _count(value.tolist())
        case Mapping():
            return _sum(value.values())
        case list() | tuple():
            return _sum(value)
    return FINITE


def _sum(values: Iterable[Any]) -> _Count:
    counts = [_count(value) for value in values]
    return _Count(sum(count.bad for count in counts), sum(count.all for count in counts))


MOST_IN_A_ROW = 3
"""Optimizer steps in a row without finite gradients that end a run: it would learn nothing any more."""


class SkippedSteps:
    """Counts skipped optimizer steps on one learner rank. Gradient norms are over all ranks, so that all
    ranks count the same."""

    def __init__(self) -> None:
        self._limits = AdvancedConfig()
        self._batch = 0
        self._count = self._in_a_row = 0

    def begin(self, batch: int, advanced: AdvancedConfig) -> None:
        """The steps from now on train global batch `batch`."""
        self._batch, self._limits = batch, advanced

    def step(self, grad_norm: float, *, scaled: bool = False) -> bool:
        """Return True if a step with gradients of this norm must be, or was, skipped.

        `scaled`: losses are scaled for half precision. The search for the scale makes gradients overflow, so
        that an overflow then never ends the run.

        Raises:
            RuntimeError: too many steps in a row were skipped; see `async.advanced.non_finite`.
        """
        if math.isfinite(grad_norm):
            self._in_a_row = 0
            return False
        self._count += 1
        self._in_a_row += 1
        most = {"off": math.inf, "refuse": MOST_IN_A_ROW, "stop": 1}[self._limits.non_finite]
        if self._in_a_row >= most and not scaled:
            raise RuntimeError(
                f"gradients are not finite in {self._in_a_row} optimizer steps in a row, the last of them in "
                f"batch {self._batch}, which version {self._batch} of the policy trains on (async.advanced."
                f"non_finite={self._limits.non_finite}): look at the losses of the steps before, and "
                "resume from a checkpoint with a smaller learning rate"
            )
        return True

    def pop(self) -> dict[str, float]:
        """The metric `async/steps_skipped` since the last call; {} if no step was skipped."""
        count, self._count = self._count, 0
        return {"async/steps_skipped": float(count)} if count else {}
