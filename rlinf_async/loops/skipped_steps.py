"""Optimizer steps that were left out, as their gradients were not finite."""

from __future__ import annotations

import math

from rlinf_async.config import AdvancedConfig

MOST_IN_A_ROW = 3
"""More say that nothing will be learnt any more."""


class SkippedSteps:
    """Counts skipped optimizer steps on one learner rank. Norms are over all, so all count alike."""

    def __init__(self) -> None:
        self._advanced = AdvancedConfig()
        self._batch = 0
        self._count = self._in_a_row = 0

    def begin(self, batch: int, advanced: AdvancedConfig) -> None:
        """The steps from now on train global batch `batch`."""
        self._batch, self._advanced = batch, advanced

    def step(self, grad_norm: float, *, scaled: bool = False) -> bool:
        """Return True if a step with gradients of this norm is to be, or was, left out.

        `scaled`: losses are scaled for half precision; the scale is found by gradients that overflow, so an
        overflow then never ends the run.

        Raises:
            RuntimeError: there are too many of them in a row, by `async.advanced.non_finite`.
        """
        if math.isfinite(grad_norm):
            self._in_a_row = 0
            return False
        self._count += 1
        self._in_a_row += 1
        most = {"off": math.inf, "refuse": MOST_IN_A_ROW, "stop": 1}[self._advanced.non_finite]
        if self._in_a_row >= most and not scaled:
            raise RuntimeError(
                f"gradients are not finite in {self._in_a_row} optimizer steps in a row, the last of them in "
                f"batch {self._batch}, which version {self._batch} of the policy trains on (async.advanced."
                f"non_finite={self._advanced.non_finite}): look at the losses of the steps before, and "
                "resume from a checkpoint with a smaller learning rate"
            )
        return True

    def pop(self) -> dict[str, float]:
        """`async/steps_skipped` since the last call, where there were any."""
        count, self._count = self._count, 0
        return {"async/steps_skipped": float(count)} if count else {}
