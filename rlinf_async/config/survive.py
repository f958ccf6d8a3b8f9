"""The `async.survive` block: which failures a run outlives, and what it does about them."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_async.config.checks import check_whole


@dataclass(frozen=True, kw_only=True)
class SurviveConfig:
    """The faults that a run outlives. Over a budget it ends with the first error."""

    env_restarts: int = 10
    """Times that a shard's environments are rebuilt within ten minutes, each time at the cost of one
    rollout; 0 ends the run with the first error."""
    process_restarts: int = 5
    """Times that an env worker or an inference rank is started again within ten minutes; 0 ends the run
    with the first death."""

    def __post_init__(self) -> None:
        for name in ("env_restarts", "process_restarts"):
            check_whole(f"async.survive.{name}", getattr(self, name), least=0)
