"""Fits the costs of the machinery on a machine to the cells of one scenario of a bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from rlinf_async.lab.plan.bench import Costs

Vector = NDArray[np.float64]

STOCK_COSTS = ("decision_s", "decision_env_s", "trajectory_s", "step_s", "pipeline_step_s")
PLUGIN_COSTS = ("request_s", "request_env_s", "piece_s", "piece_env_s", "batch_s", "whole_s", "anchor_s")
MEASUREMENT_ERROR = 0.01
"""The relative error that a measurement is taken to have; a cost is as uncertain as it is large."""
NEWTON_STEPS = 6
MIN_COST_RATIO = 0.1
"""Least ratio of a fitted cost to its guess."""


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
        return np.concatenate(
            [(np.log(predict(moved)) - target) / MEASUREMENT_ERROR, (values - before) / before]
        )

    values, error = before.copy(), off(before)
    for _ in range(NEWTON_STEPS):
        shifts = 0.3 * np.diag(before)
        slopes = np.array([(off(values + shift) - error) / shift.sum() for shift in shifts]).T
        towards = np.linalg.lstsq(slopes, -error, rcond=None)[0]
        tried = [np.maximum(values + share * towards, MIN_COST_RATIO * before) for share in (1.0, 0.5, 0.25)]
        best = min(((off(one), one) for one in tried), key=lambda pair: float(np.square(pair[0]).sum()))
        if np.square(best[0]).sum() >= np.square(error).sum():
            break
        error, values = best
    return Costs(**{**asdict(costs), **dict(zip(names, values.tolist(), strict=True))})
