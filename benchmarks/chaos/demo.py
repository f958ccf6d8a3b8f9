"""The run that is disturbed: the demo with two env workers, two inference ranks, simulators in processes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

TRAIN = [
    *(sys.executable, "-m", "rlinf_async.cli", "train", "metaworld_ppo_mlp"),
    "cluster.component_placement.env.placement=0:0-1",
    "cluster.component_placement.rollout.placement=0:0-1",
    "env.train.processes=1",
]


def demo(directory: Path, *, steps: int, overrides: list[str]) -> list[str]:
    """The command that trains it in `directory`, which is emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return [*TRAIN, f"runner.max_epochs={steps}", f"runner.logger.log_path={directory}", *overrides]
