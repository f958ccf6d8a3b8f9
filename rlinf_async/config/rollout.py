"""The `async.rollout` block: level 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.config.checks import check_flag, check_whole, is_finite


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

    def __post_init__(self) -> None:
        check_flag("async.rollout.enabled", self.enabled)
        check_whole("async.rollout.shards", self.shards, least=1, or_else="auto")
        check_whole("async.rollout.max_batch_size", self.max_batch_size, least=1, or_else="auto")
        wait = self.max_wait_ms
        if wait != "auto" and not (is_finite(wait) and wait >= 0):
            raise ValueError(
                f"async.rollout.max_wait_ms={wait!r} must be auto or a finite number of "
                "at least 0; nearest: 0"
            )

    @property
    def max_wait(self) -> float:
        """`max_wait_ms` in seconds."""
        return 0.0 if self.max_wait_ms == "auto" else float(self.max_wait_ms) / 1000.0
