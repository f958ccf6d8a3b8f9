"""What is compared: RLinf's own ways to run, each as good as it can be, and the levels of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A schedule: how a run is wired, and the overrides that choose it."""

    name: str
    kind: Literal["sync", "stock", "plugin"]
    """RLinf's synchronous loop, another of RLinf's own modes, or a level of this package."""
    overrides: tuple[str, ...]
    wiring: str = "plugin"

    @property
    def anchors(self) -> bool:
        """Whether it recomputes what the proximal policy thinks of its samples (`proximal: recomputed`)."""
        return self.name in ("train", "full")


OVERLAP_RESETS = "+runner.overlap_env_bootstrap=true"
MODES = {
    mode.name: mode
    for mode in (
        Mode(name="stock-sync-1", kind="sync", overrides=("rollout.pipeline_stage_num=1", OVERLAP_RESETS)),
        Mode(name="stock-sync-2", kind="sync", overrides=("rollout.pipeline_stage_num=2", OVERLAP_RESETS)),
        Mode(
            name="stock-pipeline",
            kind="stock",
            overrides=("+runner.use_training_pipeline=true", OVERLAP_RESETS),
        ),
        Mode(
            name="stock-async",
            kind="stock",
            wiring="async-ppo",
            overrides=(
                "algorithm.loss_type=decoupled_actor_critic",
                "+algorithm.staleness_threshold=1",
                "+algorithm.rollout_store_size_per_rank=1",
            ),
        ),
        Mode(name="train", kind="plugin", overrides=("async.mode=train",)),
        Mode(name="rollout", kind="plugin", overrides=("async.mode=rollout",)),
        Mode(name="streamer", kind="plugin", overrides=("async.mode=streamer",)),
        Mode(name="full", kind="plugin", overrides=("async.mode=full",)),
        Mode(
            name="full-loglinear",
            kind="plugin",
            overrides=("async.mode=full", "async.train.proximal=loglinear"),
        ),
    )
}
STANDARD = tuple(name for name in MODES if name != "full-loglinear")
