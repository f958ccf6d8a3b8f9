"""A bench under veRL: schedules of veRL's modes, as this package's loops make them, next to its levels.

veRL itself cannot run an environment, so nothing here is a run of veRL's own loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlinf_async.hosts.host import load
from rlinf_async.lab.bench.modes import LEVEL_MODES, OFF_OVERRIDE, Mode, standard
from rlinf_async.lab.bench.scenarios import Scenario

BENCH_CONFIG = "bench/verl_emulated"
ACTOR_SECTION = "actor_rollout_ref.actor"
STAGES = "env.stages=2"
RESETS_AHEAD = "env.train.resets_ahead=true"
"""Environments reset beside the update, as in veRL's experiment with VLAs."""
VERL_MODES = {
    mode.name: mode
    for mode in (
        Mode(name="off", kind="sync", overrides=(OFF_OVERRIDE, RESETS_AHEAD)),
        # As that experiment stepped its environments: two halves, one acts while one is answered.
        Mode(name="verl-stages", kind="sync", overrides=(OFF_OVERRIDE, RESETS_AHEAD, STAGES)),
        Mode(
            name="one-step-off",
            kind="stock",
            overrides=("async.mode=train", "++async.deterministic=true", RESETS_AHEAD),
        ),
        *LEVEL_MODES,
    )
}


class UnderVerl:
    """Fills `side.Side`."""

    modes: Mapping[str, Mode] = VERL_MODES
    standard: tuple[str, ...] = standard(VERL_MODES)
    quick: tuple[str, ...] = ("off", "one-step-off", "full")
    over = "the same loop with every level off"
    others = "peer"

    def check(self) -> None:
        load("verl").versions()

    def unavailable(self, scenario: Scenario) -> str | None:
        return None if scenario.env else f"its simulators are real, and {scenario.config} is for RLinf"

    def config(self, scenario: Scenario) -> str:
        return BENCH_CONFIG

    def overrides(self, scenario: Scenario, mode: Mode, *, log: str) -> list[str]:
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

    def run(self, *, directory: Path, steps: int, seed: int) -> list[str]:
        return [
            f"trainer.total_training_steps={steps}",
            f"vla.run_dir={directory}",
            f"{ACTOR_SECTION}.data_loader_seed={seed}",
        ]
