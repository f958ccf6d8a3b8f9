"""The `async.streamer` block: level 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.config.checks import check_flag, check_whole


@dataclass(frozen=True, kw_only=True)
class StreamerConfig:
    """Level 3: the learner accumulates micro-batches while the rest is still being collected."""

    enabled: bool = False
    micro_batch_size: int | Literal["auto"] = "auto"
    """Samples per learner rank in one forward and backward pass; auto is the host's own."""

    def __post_init__(self) -> None:
        check_flag("async.streamer.enabled", self.enabled)
        check_whole("async.streamer.micro_batch_size", self.micro_batch_size, least=1, or_else="auto")
