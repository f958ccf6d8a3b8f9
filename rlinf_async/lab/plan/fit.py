"""What the machinery costs on a machine, from the cells of one scenario of a bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from rlinf_async.lab.plan.bench import Costs

Vector = NDArray[np.float64]

STOCK = ("decision_s", "decision_env_s", "trajectory_s", "step_s", "pipeline_step_s")
PLUGIN = ("request_s", "request_env_s", "piece_s", "piece_env_s", "batch_s", "whole_s", "anchor_s")
ERROR = 0.01
"""How exact a measurement is taken to be, as a share; a cost is as uncertain as it is large."""
STEPS = 6
LEAST = 0.1
"""A cost is at least this share of what it was taken to be."""


def fit(
    costs: Costs, names: Sequence[str], predict: Callable[[Costs], Vector], measured: Mapping[str, float]
) -> Costs:
    """`costs` with those of `names` moved so that predictions meet what was measured, by least squares.

    There may be more costs than cells: what no cell tells stays near where it was.

    Args:
        predict: the throughput of each measured cell, in their order.
        measured: throughput by cell.
    """
    before = np.array([getattr(costs, name) for name in names])
    target = np.log(np.array(list(measured.values())))

    def off(values: Vector) -> Vector:
        moved = replace(costs, **dict(zip(names, values.tolist(), strict=True)))
        return np.concatenate([(np.log(predict(moved)) - target) / ERROR, (values - before) / before])

    values, error = before.copy(), off(before)
    for _ in range(STEPS):
        shifts = 0.3 * np.diag(before)
        slopes = np.array([(off(values + shift) - error) / shift.sum() for shift in shifts]).T
        towards = np.linalg.lstsq(slopes, -error, rcond=None)[0]
        tried = [np.maximum(values + share * towards, LEAST * before) for share in (1.0, 0.5, 0.25)]
        best = min(((off(one), one) for one in tried), key=lambda pair: float(np.square(pair[0]).sum()))
        if np.square(best[0]).sum() >= np.square(error).sum():
            break
        error, values = best
    return Costs(**{**asdict(costs), **dict(zip(names, values.tolist(), strict=True))})
