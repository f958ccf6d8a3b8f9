"""The `async.streamer` block: level 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.config.checks import check_choice, check_flag, check_whole


@dataclass(frozen=True, kw_only=True)
class StreamerConfig:
    """Level 3: the learner accumulates micro-batches while the rest is still being collected."""

    enabled: bool = False
    micro_batch_size: int | Literal["auto"] = "auto"
    """Samples per learner rank in one forward and backward pass; auto is the host's own."""
    normalization: Literal["auto", "running", "deferred"] = "auto"
    """Advantages (GAE): by the batch before (streams), or by the whole batch (exact, waits for it).

    Streaming can hide the first update epoch only: auto is running with one epoch, deferred with more.
    """

    def __post_init__(self) -> None:
        check_flag("async.streamer.enabled", self.enabled)
        check_whole("async.streamer.micro_batch_size", self.micro_batch_size, least=1, or_else="auto")
        check_choice("async.streamer.normalization", self.normalization, ("auto", "running", "deferred"))

    def defers(self, update_epochs: int) -> bool:
        """Return True if advantages that are normalised over a batch wait for it."""
        return update_epochs > 1 if self.normalization == "auto" else self.normalization == "deferred"
