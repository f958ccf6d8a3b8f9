"""The blocks of `async`: `train`, `rollout` and `streamer`, one per level, then `skip` and `survive`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlinf_async.core.types import Correction


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The treatment, in the loss, of samples that an older policy has drawn."""

    correction: Correction
    """The weight of a sample; never `none`."""
    max_weight: float = math.inf
    """The bound of the weight."""
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


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Level 2: no environment shard waits for another."""

    enabled: bool = False
    shards: int | Literal["auto"] = "auto"
    """Environment shards per env worker."""
    max_batch_size: int | Literal["auto"] = "auto"
    """Samples (environments) in one forward pass at most."""
    max_wait_ms: float | Literal["auto"] = "auto"
    """Milliseconds that the oldest request waits for more; auto is 0: fire when an accelerator is idle."""

    @property
    def max_wait(self) -> float:
        """`max_wait_ms` in seconds."""
        return 0.0 if self.max_wait_ms == "auto" else float(self.max_wait_ms) / 1000.0


@dataclass(frozen=True, kw_only=True)
class StreamerConfig:
    """Level 3: the learner accumulates micro-batches while the rest is still being collected."""

    enabled: bool = False
    micro_batch_size: int | Literal["auto"] = "auto"
    """Samples per learner rank in one forward and backward pass; auto is the host's own."""


@dataclass(frozen=True, kw_only=True)
class SkipConfig:
    """Work that no result depends on, left out where that is exact; `explain` says where it is not."""

    frames: bool = False
    """Cameras draw the frames that the policy, a reward model or a video looks at, and no others."""
    ended: bool = False
    """After the end of an episode that a batch masks, no simulator is stepped and no action inferred."""
    masked: bool = False
    """Samples with a zero gradient are in no pass of the learner."""

    @property
    def kinds(self) -> dict[str, bool]:
        return {"frames": self.frames, "ended": self.ended, "masked": self.masked}


@dataclass(frozen=True, kw_only=True)
class SurviveConfig:
    """The faults that a run outlives. Over a budget it ends with the first error."""

    env_restarts: int = 10
    """Times that a shard's environments are rebuilt within ten minutes, each time at the cost of one
    rollout; 0 ends the run with the first error."""
    process_restarts: int = 5
    """Times that an env worker or an inference rank is started again within ten minutes; 0 ends the run
    with the first death."""
