"""Settings of env workers and inference ranks, beyond the numbers that every host shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.loops.run_settings import RunSettings

ALL_LAYERS = "all-linear"
"""The word of peft for every linear layer."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Adapters of `rank` on the layers `targets`, in the words of peft, except on those `excluded`."""

    rank: int
    alpha: int
    targets: str | Sequence[str] = ALL_LAYERS
    excluded: str | Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(RunSettings):
    """Settings of a run whose environments and policies are stepped by `hosts.workers`."""

    action_dim: int
    """Dimensions of one action."""
    gamma: float
    adapters: Adapters | None = None
    """The adapters that are trained in the place of the policy's weights; None: all of it is trained."""
    auto_reset: bool
    """True if an episode goes on in the next rollout: `env.train.auto_reset`."""
