"""The costs of a workload, from the step times of synchronous runs.

Theory of operation. Nothing overlaps in a synchronous step, so that its time is a sum in which every cost is
linear:

    rollout    epochs x (pass_s + env_s x environments per GPU)
    training   rollouts per learner rank x (rollout_s + doubling_s x log2 of the learner ranks)
    channel    rollouts x channel_s, all through one process

The costs are the most probable ones for errors of `TIME_ERROR_SHARE` in what was measured, and shares of a
step that are about `PRIOR_SHARES` or less where the rows do not tell. No cost is negative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from rlinf_async.lab.plan.rows.row import Row

Numbers = npt.NDArray[np.float64]

TIME_ERROR_SHARE = 0.03
"""Relative error of a step time that is expected."""
PRIOR_SHARES = np.array([0.5, 0.5, 0.3, 0.1, 0.2])
"""Share of a step that each cost is expected to have, or less, before any is measured: rollouts of
vision-language-action models take longer than training on them."""
MAX_SHARE_ERROR = 0.1
"""Standard deviation of a cost, as a share of a step, from which on the rows are said not to tell it."""
COST_NAMES = (
    "the fixed time of a rollout",
    "rollouts for each environment",
    "training",
    "training for each doubling of learner ranks",
    "the one process that rollouts pass",
)


@dataclass(frozen=True)
class Costs:
    """Seconds. See the module's theory."""

    pass_s: float
    """A rollout epoch, however few environments there are."""
    env_s: float
    """More of it for each environment on a GPU."""
    rollout_s: float
    """Training on one rollout, in one update epoch, on one rank."""
    doubling_s: float
    """More of it for each doubling of learner ranks."""
    channel_s: float
    """The one process, for each rollout."""

    def decision_s(self, envs: float) -> float:
        """Return the seconds of a rollout epoch with `envs` environments on a GPU."""
        return self.pass_s + self.env_s * envs

    def training_s(self, row: Row) -> float:
        """Return the seconds in which a learner rank trains on its share of a step."""
        return float(training_terms(row) @ astuple(self))

    def channel_time(self, row: Row) -> float:
        """Return the seconds of the one process in a step."""
        return float(channel_terms(row) @ astuple(self))

    def synchronous_s(self, row: Row) -> float:
        """Return the seconds of a step in which nothing overlaps."""
        return float(step_terms(row) @ astuple(self))


def rollout_terms(row: Row) -> Numbers:
    """Return what each cost is multiplied with in the rollouts of a step.

    A GPU that hosts several batches of environments is bound by one batch that goes round, by its simulator
    if that is vectorised, or by inference for all.
    """
    gpus, hosted, share = row.parts(), row.batches_hosted, row.simulator_share
    vectorised = row.simulator == "vectorised"
    simulated = share * np.array([1.0, row.envs / gpus.simulators / (1 if vectorised else hosted)])
    inferred = (1 - share) * np.array([1.0, row.envs / gpus.inference / hosted])
    bounds = [simulated + inferred, hosted * inferred, hosted * simulated * vectorised]
    return row.epochs * np.array([*max(bounds, key=np.sum), 0.0, 0.0, 0.0])


def training_terms(row: Row) -> Numbers:
    """Return the same for training."""
    ranks = row.parts().learner
    rollouts = row.envs * row.epochs * row.update_epochs / ranks
    return rollouts * np.array([0.0, 0.0, 1.0, math.log2(ranks), 0.0])


def channel_terms(row: Row) -> Numbers:
    """Return the same for the one process."""
    rollouts = row.envs * row.epochs * (row.channel == "one")
    return np.array([0.0, 0.0, 0.0, 0.0, rollouts])


def step_terms(row: Row) -> Numbers:
    """Return the same for a synchronous step."""
    return rollout_terms(row) + training_terms(row) + channel_terms(row)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Costs, and what the rows do not tell of them."""

    costs: Costs
    rows: tuple[Row, ...]
    """The rows that they are from."""
    untold: tuple[str, ...]
    """The costs that these rows leave open by more than `MAX_SHARE_ERROR` of a step."""


def calibrate(rows: Sequence[Row]) -> Calibration:
    """Fit the costs to synchronous rows with step times.

    Raises:
        ValueError: there are none.
    """
    if not rows:
        raise ValueError("no synchronous row has a step_s to calibrate on")
    scales = _scales(rows)
    equations = np.concatenate([_equations(row) for row in rows]) / scales
    shares = _most_probable(equations)
    spread = np.sqrt(np.diag(np.linalg.inv(_information(equations))))
    untold = [
        name for name, open_by in zip(COST_NAMES, spread.tolist(), strict=True) if open_by > MAX_SHARE_ERROR
    ]
    return Calibration(costs=Costs(*(shares / scales).tolist()), rows=tuple(rows), untold=tuple(untold))


def most_telling(rows: Sequence[Row], count: int) -> list[Row]:
    """Return `count` of the rows, or fewer, that leave least of the costs open.

    They are chosen by sizes alone: step times are not looked at but as units.
    """
    left, chosen = list(rows), list[Row]()
    scales = _scales(rows) if rows else np.ones(len(COST_NAMES))
    known = _information(np.empty((0, len(COST_NAMES))))
    while left and len(chosen) < count:
        added = [
            known + (_equations(row) / scales).T @ (_equations(row) / scales) / TIME_ERROR_SHARE**2
            for row in left
        ]
        best = max(range(len(left)), key=lambda index: float(np.linalg.slogdet(added[index])[1]))
        known = added[best]
        chosen.append(left.pop(best))
    return chosen


def _equations(row: Row) -> Numbers:
    """Return the terms of everything that was measured of a row, over the measured seconds."""
    measured = (
        (step_terms, row.step_s),
        (rollout_terms, row.rollout_s),
        (training_terms, row.training_s),
    )
    return np.array([terms(row) / seconds for terms, seconds in measured if seconds])


def _scales(rows: Sequence[Row]) -> Numbers:
    """Return the mean share of a step that a second of each cost makes, so that unknowns are shares."""
    means = np.mean([step_terms(row) / row.step_s for row in rows], axis=0)
    return np.where(means > 0, means, 1.0)


def _information(equations: Numbers) -> Numbers:
    information: Numbers = equations.T @ equations / TIME_ERROR_SHARE**2 + np.diag(PRIOR_SHARES**-2)
    return information


def _most_probable(equations: Numbers) -> Numbers:
    """Return the shares that fit best, none negative: the best of the fits in which some costs are 0."""
    width = len(COST_NAMES)
    left = np.concatenate([equations / TIME_ERROR_SHARE, np.diag(1 / PRIOR_SHARES)])
    right = np.concatenate([np.ones(len(equations)) / TIME_ERROR_SHARE, np.zeros(width)])
    best, least = np.zeros(width), math.inf
    for used in itertools.product((False, True), repeat=width):
        kept = np.flatnonzero(used)
        shares = np.zeros(width)
        shares[kept] = np.linalg.lstsq(left[:, kept], right, rcond=None)[0]
        missed = float(np.sum((left @ shares - right) ** 2))
        if shares.min(initial=0.0) >= 0 and missed < least:
            best, least = shares, missed
    return best
