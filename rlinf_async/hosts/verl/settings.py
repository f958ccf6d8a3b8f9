"""What the processes of a run under veRL need beyond the numbers that every host shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.loops.run_settings import RunSettings

RatioLevel = Literal["token", "action", "chunk"]


@dataclass(frozen=True, kw_only=True)
class VerlSettings(RunSettings):
    """A run of trainer mode `vla_async`; see `config` for what each of veRL's keys means here."""

    action_dim: int
    """Dimensions of one action."""
    ratio_level: RatioLevel
    """What one entry of veRL's `response_mask` is: `vla.ratio_level`."""
    estimator: str
    """veRL's `algorithm.adv_estimator`."""
    gamma: float
    lam: float
    norm_by_std: bool
    """veRL's `algorithm.norm_adv_by_std_in_grpo`."""
    auto_reset: bool
    """Whether an episode goes on in the next rollout: `env.train.auto_reset`."""
    value_clip: float
    """veRL's `critic.cliprange_value`."""
