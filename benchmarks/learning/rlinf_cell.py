"""A cell on RLinf: the real command, on a real Ray cluster; stock workers where the mode is off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.learning.cells import ENV_STEPS_PER_BATCH, Cell, Curve, write

CONFIGS = {"ppo": "metaworld_ppo_mlp", "grpo": "metaworld_grpo_mlp"}


def run(cell: Cell) -> None:
    """Train the cell and write its curve.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    directory = Path("runs") / cell.name
    shutil.rmtree(directory, ignore_errors=True)  # what an earlier attempt has logged would be read as well
    overrides = [
        f"env.train.task_name={cell.task}",
        f"runner.max_epochs={cell.batches}",
        f"runner.logger.log_path={directory}",
        f"actor.seed={cell.seed}",
        f"warm_start.seed={cell.seed}",
        *_flat("async", cell.asynchrony),
    ]
    command = [sys.executable, "-m", "rlinf_async.cli", "train", "-n", CONFIGS[cell.algorithm], *overrides]
    environment = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{cell.name} ended with status {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    write(cell, _curve(directory, cell), {"trajectories": _trajectories(directory)})


def _flat(prefix: str, block: Any) -> list[str]:
    if not isinstance(block, dict):
        return [f"{prefix}={json.dumps(block)}"]
    return [line for key, value in block.items() for line in _flat(f"{prefix}.{key}", value)]


def _curve(directory: Path, cell: Cell) -> Curve:
    """From TensorBoard, which stock RLinf writes, too."""
    events = EventAccumulator(str(next(directory.rglob("events.out.*")).parent), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]

    def scalars(tag: str) -> list[float]:
        return [event.value for event in events.Scalars(tag)]

    seconds = scalars("time/step" if "time/step" in tags else "async/step_seconds")
    stale = scalars("async/staleness/mean") if "async/staleness/mean" in tags else [0.0] * cell.batches
    return Curve(
        env_steps=[ENV_STEPS_PER_BATCH * (batch + 1) for batch in range(cell.batches)],
        seconds=list(accumulate(seconds)),
        success=scalars("env/success_once"),
        returns=scalars("env/return"),
        staleness=stale,
    )


def _trajectories(directory: Path) -> Any:
    summary = directory / "summary.json"
    return json.loads(summary.read_text())["trajectories"] if summary.exists() else None
