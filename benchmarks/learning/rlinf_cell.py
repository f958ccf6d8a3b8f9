"""A cell on RLinf: the real command, on a real Ray cluster; stock workers where the mode is off."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.learning.cells import ENV_STEPS_PER_BATCH, Cell, Curve, write
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.observe.run_dir import RunDir

CONFIGS = {"ppo": "metaworld_ppo_mlp", "grpo": "metaworld_grpo_mlp"}
RUNS = Path("runs")
DEADLINE_S = 4 * 3600.0


def run(cell: Cell) -> None:
    """Train the cell and write its curve.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    directory = RUNS / cell.name
    overrides = [
        f"env.train.task_name={cell.task}",
        f"runner.max_epochs={cell.batches}",
        f"runner.logger.log_path={directory}",
        f"actor.seed={cell.seed}",
        f"warm_start.seed={cell.seed}",
        *flat("async", cell.asynchrony),
    ]
    train(directory, ["-n", CONFIGS[cell.algorithm], *overrides])
    write(cell, _curve(directory, cell), {"trajectories": trajectories(directory)})


def flat(prefix: str, block: Any) -> list[str]:
    """The overrides of a block of a config, one for each of its leaves."""
    if not isinstance(block, dict):
        return [f"{prefix}={json.dumps(block)}"]
    return [line for key, value in block.items() for line in flat(f"{prefix}.{key}", value)]


def _curve(directory: Path, cell: Cell) -> Curve:
    """From TensorBoard, which stock RLinf writes, too."""
    scalars = {tag: list(values.values()) for tag, values in read_scalars(directory).items()}
    return Curve(
        env_steps=[ENV_STEPS_PER_BATCH * (batch + 1) for batch in range(cell.batches)],
        seconds=list(accumulate(scalars.get("time/step") or scalars["async/step_seconds"])),
        success=scalars["env/success_once"],
        returns=scalars["env/return"],
        staleness=scalars.get("async/staleness/mean", [0.0] * cell.batches),
    )


def train(
    directory: Path,
    arguments: Sequence[str],
    *,
    program: Sequence[str] = ("rlinf_async.cli", "train"),
    environment: Mapping[str, str] = OWN_CLUSTER,
) -> None:
    """Run `program`, a module and its first argument, with `arguments`, by which it logs into `directory`.

    `environment` is what its environment has beside that of this process.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    shutil.rmtree(directory, ignore_errors=True)  # what an earlier attempt has logged would be read as well
    directory.mkdir(parents=True)
    log = directory / "output.log"
    command = [sys.executable, "-m", *program, *arguments]
    status = run_command(command, log, environment=environment, deadline_s=DEADLINE_S)
    if status:
        raise RuntimeError(f"{directory.name} ended with status {status}: {tail(log, 3000)}")


def trajectories(directory: Path) -> Any:
    """What became of a run's trajectories; None for stock RLinf, which does not count them."""
    records = RunDir(directory)
    return records.read(records.summary).get("trajectories")
