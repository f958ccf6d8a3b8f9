"""The modes that are compared: RLinf's own, each as good as it can be, and the levels of this package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rlinf_async.lab.bench.scenarios import Scenario


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A schedule: how a run is wired, and the overrides that choose it."""

    name: str
    kind: Literal["sync", "stock", "plugin"]
    """A synchronous loop, another schedule to compare with, or a level of this package."""
    overrides: tuple[str, ...]
    wiring: str = "plugin"

    env_workers: int = 0
    """The number that this mode needs; by default as many as the scenario has."""
    balance: Literal["exact", "tasks", "free"] = "exact"
    """The contribution of environments to a batch: equal, each with its own task (exact); equal, a free
    one with the next task where it can take it on (tasks); or more from the faster ones (free)."""

    def balance_in(self, scenario: Scenario) -> Literal["exact", "tasks", "free"]:
        """Return the balance that a run of `scenario` has."""
        return "exact" if self.balance == "tasks" and not scenario.takes_tasks else self.balance

    def overrides_for(self, scenario: Scenario) -> list[str]:
        """Return the overrides with which a config of RLinf for `scenario` runs in this mode."""
        workers = self.env_workers or scenario.env_workers
        placed = [f"cluster.component_placement.env.placement='0:0-{workers - 1}'"] if workers > 1 else []
        # RLinf's asynchronous PPO trains on what its store holds: a batch is one trajectory of each worker.
        stored = [f"+algorithm.rollout_store_size_per_rank={workers}"] if self.wiring == "async-ppo" else []
        return [*self.overrides, *placed, *stored]


OFF_OVERRIDE = "async.mode=off"
OVERLAP_RESETS = "+runner.overlap_env_bootstrap=true"
ASYNC_PPO = (OFF_OVERRIDE, "algorithm.loss_type=decoupled_actor_critic", "+algorithm.staleness_threshold=1")
LEVEL_MODES = (
    Mode(name="train", kind="plugin", overrides=("async.mode=train",)),
    Mode(name="rollout", kind="plugin", overrides=("async.mode=rollout",), balance="tasks"),
    Mode(name="streamer", kind="plugin", overrides=("async.mode=streamer",)),
    Mode(name="full", kind="plugin", overrides=("async.mode=full",), balance="tasks"),
    Mode(
        name="full-loglinear",
        kind="plugin",
        overrides=("async.mode=full", "async.advanced.proximal=loglinear"),
        balance="tasks",
    ),
    Mode(
        name="full-exact",
        kind="plugin",
        overrides=("async.mode=full", "async.advanced.balance=exact"),
    ),
)
"""The levels of this package, which every host has; those named `full-` change what is learnt or how."""
BENCH_MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="stock-sync-1",
            kind="sync",
            overrides=(OFF_OVERRIDE, "rollout.pipeline_stage_num=1", OVERLAP_RESETS),
        ),
        Mode(
            name="stock-sync-2",
            kind="sync",
            overrides=(OFF_OVERRIDE, "rollout.pipeline_stage_num=2", OVERLAP_RESETS),
        ),
        Mode(
            name="stock-pipeline",
            kind="stock",
            overrides=(OFF_OVERRIDE, "+runner.use_training_pipeline=true", OVERLAP_RESETS),
        ),
        Mode(
            name="stock-async",
            kind="stock",
            wiring="async-ppo",
            overrides=ASYNC_PPO,
        ),
        Mode(
            name="stock-decoupled",
            kind="stock",
            wiring="async-ppo",
            overrides=(*ASYNC_PPO, "+runner.enable_decoupled_mode=true"),
            env_workers=8,
            balance="free",
        ),
        *LEVEL_MODES,
    )
}


def standard(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the modes that are run unless some are named."""
    return tuple(name for name in modes if not name.startswith("full-"))


STANDARD_MODES = standard(BENCH_MODES)
