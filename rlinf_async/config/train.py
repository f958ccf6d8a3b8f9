"""The `async.train` block: level 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rlinf_async.config.checks import check_above_zero, check_choice, check_flag, check_whole
from rlinf_async.core.types import Balance, Correction

MAX_WEIGHT = {"tis": 2.0, "mis": 2.0}
"""Bounds of importance weights by correction: what practice agrees on."""
COMPARED_BYTES = 2 * 10**9
"""Of trained weights on a learner rank, up to which `measure_ratios: auto` keeps copies of past ones."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Level 1: rollouts do not wait for the optimizer."""

    enabled: bool = False
    max_staleness: int = 1
    """Policy versions that a trained sample may be old, counted in global steps."""
    correction: Correction = "decoupled"
    """How a sample that an older policy has drawn is weighted; see `core.objectives.importance_weight`."""
    max_weight: float | Literal["auto"] = "auto"
    """The bound of that weight for tis and mis; auto: 2."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """The policy at the start of the update: recomputed in a pass without gradients, or interpolated."""
    scorer: Literal["learner", "inference"] = "learner"
    """Who recomputes the anchor: the learner, in a pass before it trains, or the inference ranks, which have
    the same weights, while it trains on what comes first. That is of use where they wait for the learner."""
    balance: Balance = "exact"
    """How environments contribute equally to every batch: each with its own task, or whoever is free with the
    task that is next (tasks)."""
    measure_ratios: bool | Literal["auto"] = "auto"
    """Whether to log, per staleness and on a few samples, how far sampler, learner and policies differ.

    Costs a copy of the trained parameters to the CPU a step, and `max_staleness + 1` of them kept there;
    auto: where a learner rank trains at most 2 GB of them, and above that only what needs no copy.
    """
    accept_bias: bool = False
    """Said beside `correction: none`, to train off-policy data as if it were on-policy."""

    def __post_init__(self) -> None:
        for flag in ("enabled", "accept_bias"):
            check_flag(f"async.train.{flag}", getattr(self, flag))
        if self.measure_ratios != "auto":
            check_flag("async.train.measure_ratios", self.measure_ratios)
        check_whole("async.train.max_staleness", self.max_staleness, least=0)
        check_choice("async.train.correction", self.correction, get_args(Correction))
        check_choice("async.train.balance", self.balance, get_args(Balance))
        check_choice("async.train.proximal", self.proximal, ("recomputed", "loglinear"))
        check_choice("async.train.scorer", self.scorer, ("learner", "inference"))
        check_above_zero("async.train.max_weight", self.max_weight, auto=True)
        if self.scorer == "inference" and self.proximal != "recomputed":
            raise ValueError(
                f"async.train.scorer=inference with proximal={self.proximal}: nothing is scored again; use "
                "proximal=recomputed, or scorer=learner"
            )
        if self.enabled and self.max_staleness and self.correction == "none" and not self.accept_bias:
            raise ValueError(
                f"async.train.correction=none with max_staleness={self.max_staleness} trains off-policy data "
                "without any correction; use correction=decoupled, or also set async.train.accept_bias=true"
            )

    @property
    def measures(self) -> bool:
        """Whether distances between sampler, learner and policies are looked at, as far as `auto` goes."""
        return self.measure_ratios is not False

    def compares_versions(self, trained_bytes: float) -> bool:
        """Whether that includes policies of earlier versions, where a learner rank trains so many bytes."""
        return self.measures and (self.measure_ratios != "auto" or trained_bytes <= COMPARED_BYTES)

    @property
    def weight_bound(self) -> float:
        """`max_weight` as a number: without `auto`, and infinite where the correction has no bound."""
        bound = self.max_weight if self.max_weight != "auto" else MAX_WEIGHT.get(self.correction)
        return math.inf if bound is None or self.correction == "decoupled" else bound
