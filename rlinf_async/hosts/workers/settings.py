"""Settings of env workers and inference ranks, besides those that all hosts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.loops.run_settings import RunSettings

ALL_LAYERS = "all-linear"
"""peft's name for all linear layers."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Adapters of `rank` on the layers `targets` (in peft's terms), except on those `excluded`."""

    rank: int
    alpha: int
    targets: str | Sequence[str] = ALL_LAYERS
    excluded: str | Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(RunSettings):
    """Settings of a run with the env workers and inference ranks of `hosts.workers`."""

    action_dim: int
    """Dimensions of one action."""
    gamma: float
    adapters: Adapters | None = None
    """The adapters that are trained instead of the policy's weights; None: all weights are trained."""
    auto_reset: bool
    """`env.train.auto_reset`: True if episodes continue in the next rollout."""
