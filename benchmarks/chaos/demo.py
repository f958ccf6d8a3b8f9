"""The run that is disturbed: the demo with two env workers and two inference ranks, on either framework."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The demo on one host."""

    settings: Sequence[str]
    """The config and its overrides."""
    steps: str
    """The key of the number of steps."""
    run_dir: str
    kinds: Sequence[str]
    """Who is killed, in the words of `VICTIM_KINDS`."""


DEMOS = {
    "rlinf": Demo(
        settings=(
            "metaworld_ppo_mlp",
            "cluster.component_placement.env.placement=0:0-1",
            "cluster.component_placement.rollout.placement=0:0-1",
            "env.train.processes=1",
        ),
        steps="runner.max_epochs",
        run_dir="runner.logger.log_path",
        kinds=("simulator", "env", "inference"),
    ),
    # Its simulators live in the env workers.
    "verl": Demo(
        settings=("verl_metaworld_ppo_mlp", "env.workers=2", "vla.inference.ranks=2"),
        steps="trainer.total_training_steps",
        run_dir="vla.run_dir",
        kinds=("env", "inference"),
    ),
}


def demo(directory: Path, *, steps: int, overrides: Sequence[str], host: str = "rlinf") -> list[str]:
    """The command that trains it in `directory`, which is emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    given = DEMOS[host]
    command = [sys.executable, "-m", "rlinf_async.cli", "train", *given.settings]
    return [*command, f"{given.steps}={steps}", f"{given.run_dir}={directory}", *overrides]
