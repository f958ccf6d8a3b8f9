"""One run of the preregistered experiment on RLinf: the real command on a real Ray cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.learning.preregistered_run import STEPS, store
from benchmarks.learning.preregistration import Setting, Side, load

BATCHES = 30
LR = {1: 3e-4, 4: 2e-4}
"""By update epochs."""
SAMPLES = {"states": 32 * 20, "pictures": 8 * 4}
"""In a batch of the packaged configs."""


def run(setting: Setting, side: Side, seed: int) -> None:
    """Train one run of a setting and write its result.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    stated = load()
    directory = Path("runs") / f"{setting.name}-{side}-seed{seed}"
    shutil.rmtree(directory, ignore_errors=True)  # what an earlier attempt has logged would be read as well
    command = [sys.executable, "-m", "rlinf_async.cli", "train", *arguments(setting, side, seed, directory)]
    environment = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{directory.name} ended with status {done.returncode}: "
            f"{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
    measure = "env/return" if _pictures(setting) else "env/success_once"
    curves = _curves(directory, measure)
    store(setting.path(side, seed), {"run": stated.record(setting, side, seed), **curves})


def arguments(setting: Setting, side: Side, seed: int, directory: Path) -> list[str]:
    """The config and its overrides."""
    given = setting.given
    pictures = _pictures(setting)
    config = "metaworld_ppo_vla" if pictures else f"metaworld_{setting.algorithm}_mlp"
    overrides = [
        f"env.train.task_name={setting.task}",
        f"env.train.auto_reset={str(given['auto_reset']).lower()}",
        f"runner.max_epochs={BATCHES}",
        f"runner.logger.log_path={directory}",
        f"actor.seed={seed}",
        f"actor.optim.lr={LR[given['update_epoch']]}",
        f"actor.fsdp_config.strategy={given['strategy']}",
        f"algorithm.update_epoch={given['update_epoch']}",
    ]
    samples = SAMPLES["pictures" if pictures else "states"]
    if pictures:
        overrides += [
            f"actor.{size}={samples // STEPS}" for size in ("micro_batch_size", "global_batch_size")
        ]
    else:
        overrides += ["warm_start.lowest_success=0.4", "warm_start.highest_success=0.6"]
        overrides += [f"warm_start.seed={seed}"]
    if side == "synchronous":
        return ["-n", config, *overrides, "async.mode=off"]
    return [
        *("-n", config),
        *overrides,
        "async.mode=full",
        f"async.train.max_staleness={setting.lag}",
        f"async.rollout.shards={given['shards']}",
        f"async.streamer.micro_batch_size={samples // given['shards']}",
        "async.streamer.normalization=running",
    ]


def _pictures(setting: Setting) -> bool:
    return bool(setting.given.get("policy") == "smol_vla")


def _curves(directory: Path, measure: str) -> dict[str, Any]:
    """From TensorBoard, which stock RLinf writes, too."""
    events = EventAccumulator(str(next(directory.rglob("events.out.*")).parent), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]

    def scalars(*names: str) -> list[float]:
        found = next((name for name in names if name in tags), None)
        return [0.0] * BATCHES if found is None else [round(e.value, 4) for e in events.Scalars(found)]

    summary = directory / "summary.json"
    return {
        "success": scalars(measure),
        "mean_lag": scalars("async/staleness/mean"),
        "streamed_share": scalars("train/streamed"),
        "gradient_norm": scalars("train/grad_norm", "train/actor/grad_norm"),
        "seconds": scalars("time/step", "async/step_seconds"),
        "trajectories": json.loads(summary.read_text())["trajectories"] if summary.exists() else None,
    }
