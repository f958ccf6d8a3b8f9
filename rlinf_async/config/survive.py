"""The `async.survive` block: which failures a run outlives, and what it does about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.config.checks import check_above_zero, check_choice, check_whole

SHORTEST_S = 100.0
SLOWER_THAN_EVER = 20.0
"""What `auto` comes to: a step or a reset may take so long, or so many times as long as any before."""


@dataclass(frozen=True, kw_only=True)
class SurviveConfig:
    """What a run outlives. Over a budget it ends with the first error."""

    env_restarts: int = 10
    """How often a shard's environments are built anew within `window_s`, each time at the cost of one
    rollout; 0 ends the run with the first error."""
    process_restarts: int = 5
    """How often an env worker or an inference rank is started anew within `window_s`; 0 ends the run with the
    first death."""
    window_s: float = 600.0
    """The seconds in which restarts are counted."""
    start_s: float = 1800.0
    """How long the environments of a shard may take to be built, and for their first reset and step, which
    may compile."""
    reset_s: float | Literal["auto"] = "auto"
    """How long a reset of a shard's environments may take before they count as dead; auto: 100 s, or 20 times
    the longest reset that the shard has seen if that is more, and `start_s` for its first."""
    step_s: float | Literal["auto"] = "auto"
    """How long a step of a shard's environments may take before they count as dead; auto: 100 s, or 20 times
    the longest step that the shard has seen if that is more, and `start_s` for its first."""
    silent_s: float = 100.0
    """A process that has not answered for so long is killed: an env worker or inference rank is started
    anew, without a learner rank or a channel the run ends."""
    non_finite: Literal["refuse", "stop", "off"] = "refuse"
    """What a rollout or a gradient with a NaN or an infinity does: it is refused and counted, it ends the
    run, or nobody looks."""
    save_failures: int = 3
    """How many checkpoints in a row may fail to be written before the run ends."""
    keep: int | Literal["all"] = "all"
    """How many whole checkpoints are kept, the newest; older ones are removed when one has been written."""

    def __post_init__(self) -> None:
        for name in ("env_restarts", "process_restarts"):
            check_whole(f"async.survive.{name}", getattr(self, name), least=0)
        for name in ("window_s", "start_s", "silent_s"):
            check_above_zero(f"async.survive.{name}", getattr(self, name))
        for name in ("reset_s", "step_s"):
            check_above_zero(f"async.survive.{name}", getattr(self, name), auto=True)
        check_choice("async.survive.non_finite", self.non_finite, ("refuse", "stop", "off"))
        check_whole("async.survive.save_failures", self.save_failures, least=1)
        check_whole("async.survive.keep", self.keep, least=1, or_else="all")

    def step_limit(self, longest: float) -> float:
        """The seconds that a step may take in a shard whose longest took `longest` seconds, 0 before any."""
        return self._limit(self.step_s, longest)

    def reset_limit(self, longest: float) -> float:
        """`step_limit`, of resets."""
        return self._limit(self.reset_s, longest)

    def _limit(self, value: float | Literal["auto"], longest: float) -> float:
        if value != "auto":
            return float(value)
        if not longest:
            return self.start_s
        return max(SHORTEST_S, SLOWER_THAN_EVER * longest)
