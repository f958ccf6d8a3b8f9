"""The `async.train` block: level 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from rlinf_async.config.checks import check_choice, check_flag, check_whole
from rlinf_async.core.types import Correction


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The way in which a loss treats samples that an older policy has drawn."""

    correction: Correction
    """The weight of each; never `none`."""
    max_weight: float = math.inf
    """The bound of that weight."""
    interpolates: bool = False
    """True if the proximal policy is interpolated; its log-probabilities are recomputed otherwise."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Level 1: rollouts do not wait for the optimizer."""

    enabled: bool = False
    max_staleness: int = 1
    """Policy versions that a trained sample may be old, counted in global steps."""
    correction: Correction = "decoupled"
    """The weight of a sample that an older policy has drawn; see `core.objectives.importance_weight`."""

    def __post_init__(self) -> None:
        check_flag("async.train.enabled", self.enabled)
        check_whole("async.train.max_staleness", self.max_staleness, least=0)
        check_choice("async.train.correction", self.correction, get_args(Correction))
