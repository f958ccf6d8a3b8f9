"""The compared modes, and each host's part in a bench."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rlinf_async.extras import pip_install
from rlinf_async.hosts.host import load
from rlinf_async.hosts.rlinf.tree import supported_rlinf
from rlinf_async.lab.bench.scenarios import Scenario
from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, missing_libero
from rlinf_async.lab.demo.simulators.vulkan import check_vulkan


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule: the wiring of a run, and the overrides that choose it."""

    name: str
    kind: Literal["sync", "stock", "plugin"]
    """A synchronous loop, another schedule to compare with, or a level of this package."""
    overrides: tuple[str, ...]
    wiring: str = "plugin"

    env_workers: int = 0
    """The number of env workers that this mode needs; 0 for the scenario's number."""
    balance: Literal["exact", "tasks", "free"] = "exact"
    """The contribution of environments to a batch: equal, each with its own task (exact); equal, a free
    one with the next task where it can take it on (tasks); or more from the faster ones (free)."""

    def balance_in(self, scenario: Scenario) -> Literal["exact", "tasks", "free"]:
        """Return the balance of a run of `scenario`."""
        return "exact" if self.balance == "tasks" and not scenario.takes_tasks else self.balance

    def overrides_for(self, scenario: Scenario) -> list[str]:
        """Return the overrides with which a config of RLinf for `scenario` runs in this mode."""
        workers = self.env_workers or scenario.env_workers
        placement = [f"cluster.component_placement.env.placement='0:0-{workers - 1}'"] if workers > 1 else []
        # RLinf's asynchronous PPO trains on the content of its store: one trajectory of each worker is a
        # batch.
        store_size = (
            [f"+algorithm.rollout_store_size_per_rank={workers}"] if self.wiring == "async-ppo" else []
        )
        return [*self.overrides, *placement, *store_size]


OFF_OVERRIDE = "async.mode=off"
OVERLAP_RESETS = "+runner.overlap_env_bootstrap=true"
ASYNC_PPO = (OFF_OVERRIDE, "algorithm.loss_type=decoupled_actor_critic", "+algorithm.staleness_threshold=1")
DEAD_WORK_MODES = (
    Schedule(name="lean", kind="plugin", overrides=("async.mode=lean",)),
    Schedule(
        name="levels", kind="plugin", overrides=("async.mode=full", "async.skip=false"), balance="tasks"
    ),
)
"""Further modes of scenarios with episodes that end early: no dead work and no levels; all levels with dead
work."""
LEVEL_MODES = (
    Schedule(name="train", kind="plugin", overrides=("async.mode=train",)),
    Schedule(name="rollout", kind="plugin", overrides=("async.mode=rollout",), balance="tasks"),
    Schedule(name="streamer", kind="plugin", overrides=("async.mode=streamer",)),
    Schedule(name="full", kind="plugin", overrides=("async.mode=full",), balance="tasks"),
    Schedule(
        name="full-loglinear",
        kind="plugin",
        overrides=("async.mode=full", "async.advanced.proximal=loglinear"),
        balance="tasks",
    ),
    Schedule(
        name="full-exact",
        kind="plugin",
        overrides=("async.mode=full", "async.advanced.balance=exact"),
    ),
)
"""The levels of this package, which every host has; modes named `full-` also change learning."""
BENCH_MODES = {
    mode.name: mode
    for mode in (
        Schedule(
            name="stock-sync-1",
            kind="sync",
            overrides=(OFF_OVERRIDE, "rollout.pipeline_stage_num=1", OVERLAP_RESETS),
        ),
        Schedule(
            name="stock-sync-2",
            kind="sync",
            overrides=(OFF_OVERRIDE, "rollout.pipeline_stage_num=2", OVERLAP_RESETS),
        ),
        Schedule(
            name="stock-pipeline",
            kind="stock",
            overrides=(OFF_OVERRIDE, "+runner.use_training_pipeline=true", OVERLAP_RESETS),
        ),
        Schedule(
            name="stock-async",
            kind="stock",
            wiring="async-ppo",
            overrides=ASYNC_PPO,
        ),
        Schedule(
            name="stock-decoupled",
            kind="stock",
            wiring="async-ppo",
            overrides=(*ASYNC_PPO, "+runner.enable_decoupled_mode=true"),
            env_workers=8,
            balance="free",
        ),
        *LEVEL_MODES,
        *DEAD_WORK_MODES,
    )
}


def standard(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the default modes of a bench among `modes`."""
    extra = {mode.name for mode in DEAD_WORK_MODES}
    return tuple(name for name in modes if not name.startswith("full-") and name not in extra)


STANDARD_MODES = standard(BENCH_MODES)


class Side(Protocol):
    """One host's part in a bench: its schedules, and their overrides in the host's config."""

    modes: Mapping[str, Schedule]
    standard: tuple[str, ...]
    """The default modes."""
    others: str
    """One word for all modes that are not this package's levels."""

    def check(self) -> None:
        """Check that the host is installed.

        Raises:
            ValueError: the host is missing; the message has the remedy.
        """

    def unavailable(self, scenario: Scenario) -> str | None:
        """Return the reason why a scenario cannot run on this machine under this host, or None."""

    def config(self, scenario: Scenario) -> str:
        """Return the name of the config that a scenario is made from."""

    def overrides(self, scenario: Scenario, mode: Schedule, *, log: str) -> list[str]:
        """Return the overrides that turn that config into the scenario in a mode; processes log their spans
        into `log`.
        """

    def run(self, *, directory: Path, steps: int, seed: int | None = None) -> list[str]:
        """Return the overrides for a run of `steps` global steps that writes into `directory`; without a
        `seed`, the config's seed stays.
        """


class UnderRLinf(Side):
    """RLinf's own modes next to the levels of this package."""

    modes: Mapping[str, Schedule] = BENCH_MODES
    standard: tuple[str, ...] = STANDARD_MODES
    others = "stock"

    def check(self) -> None:
        supported_rlinf()

    def unavailable(self, scenario: Scenario) -> str | None:
        if scenario.name == "metaworld" and importlib.util.find_spec("metaworld") is None:
            return f"Meta-World is not installed: {pip_install('metaworld')}"
        if scenario.name == "libero-real":
            if not os.environ.get(ASSETS_VARIABLE):
                return f"{ASSETS_VARIABLE} names no folder of LIBERO's assets, see docs/install.md"
            return missing_libero()
        if scenario.name == "maniskill-real":
            if importlib.util.find_spec("mani_skill") is None:
                return "ManiSkill is not installed, see docs/install.md"
            vulkan = check_vulkan()
            return None if vulkan.status == "ok" else f"{vulkan.detail}; {vulkan.mend}"
        return None

    def config(self, scenario: Scenario) -> str:
        return scenario.config

    def overrides(self, scenario: Scenario, mode: Schedule, *, log: str) -> list[str]:
        return [*scenario.overrides(log=log), *mode.overrides_for(scenario)]

    def run(self, *, directory: Path, steps: int, seed: int | None = None) -> list[str]:
        seeds = [] if seed is None else [f"actor.seed={seed}"]
        return [f"runner.max_epochs={steps}", f"runner.logger.log_path={directory}", *seeds]


BENCH_CONFIG = "bench/verl_emulated"
ACTOR_SECTION = "actor_rollout_ref.actor"
STAGES_OVERRIDE = "env.stages=2"
RESETS_AHEAD = "env.train.resets_ahead=true"
"""Environments reset during the update, as in veRL's experiment with VLAs."""
VERL_MODES = {
    mode.name: mode
    for mode in (
        Schedule(name="off", kind="sync", overrides=(OFF_OVERRIDE, RESETS_AHEAD)),
        # That experiment stepped its environments in two halves: one acts while the other is answered.
        Schedule(name="verl-stages", kind="sync", overrides=(OFF_OVERRIDE, RESETS_AHEAD, STAGES_OVERRIDE)),
        Schedule(
            name="one-step-off",
            kind="stock",
            overrides=("async.mode=train", "++async.deterministic=true", RESETS_AHEAD),
        ),
        *LEVEL_MODES,
        *DEAD_WORK_MODES,
    )
}


class UnderVerl(Side):
    """veRL's schedules, made by this package's loops, next to the levels.

    veRL itself cannot run an environment, so none of these is a run of veRL's own loops.
    """

    modes: Mapping[str, Schedule] = VERL_MODES
    standard: tuple[str, ...] = standard(VERL_MODES)
    others = "peer"

    def check(self) -> None:
        load("verl").versions()

    def unavailable(self, scenario: Scenario) -> str | None:
        return None if scenario.env else f"its simulators are real, and {scenario.config} is for RLinf"

    def config(self, scenario: Scenario) -> str:
        return BENCH_CONFIG

    def overrides(self, scenario: Scenario, mode: Schedule, *, log: str) -> list[str]:
        mini_batch = scenario.samples // scenario.optimizer_steps // scenario.decisions
        return [
            f"env.workers={mode.env_workers or scenario.env_workers}",
            f"env.train.total_num_envs={scenario.envs}",
            f"env.train.max_episode_steps={scenario.decisions * scenario.chunk}",
            f"{ACTOR_SECTION}.ppo_epochs={scenario.update_epoch}",
            f"{ACTOR_SECTION}.ppo_mini_batch_size={mini_batch}",
            f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu={scenario.micro_batch_size}",
            *scenario.emulated(log=log, model="vla.model"),
            *scenario.extra,
            *mode.overrides,
        ]

    def run(self, *, directory: Path, steps: int, seed: int | None = None) -> list[str]:
        seeds = [] if seed is None else [f"{ACTOR_SECTION}.data_loader_seed={seed}"]
        return [f"trainer.total_training_steps={steps}", f"vla.run_dir={directory}", *seeds]


SIDES_BY_HOST: Mapping[str, Side] = {"rlinf": UnderRLinf(), "verl": UnderVerl()}
"""The sides by the names of their hosts."""
