"""Settings of learner ranks under veRL, beyond those of env workers and inference ranks."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.workers.settings import WorkerSettings


@dataclass(frozen=True, kw_only=True)
class VerlSettings(WorkerSettings):
    """A run of trainer mode `vla_async`; see `config` for what each of veRL's keys means here."""

    ratio_level: RatioLevel
    """The meaning of one entry of veRL's `response_mask`: `vla.ratio_level`."""
    estimator: str
    """veRL's `algorithm.adv_estimator`."""
    lam: float
    norm_by_std: bool
    """veRL's `algorithm.norm_adv_by_std_in_grpo`."""
    value_clip: float
    """veRL's `critic.cliprange_value`."""
