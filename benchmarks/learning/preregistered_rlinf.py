"""One run of the preregistered experiment on RLinf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.cells import store
from benchmarks.learning.preregistration import STEPS, Setting, Side, load
from benchmarks.learning.rlinf_cell import RUNS, train, trajectories
from rlinf_async.lab.process import OWN_CLUSTER
from rlinf_async.lab.sweep.steps import read_scalars

EXT_MODULE = "RLINF_EXT_MODULE"
FSDP1_ON_CPU = "benchmarks.learning.fsdp1_on_cpu"
SLOW_METAWORLD = "benchmarks.learning.slow_metaworld"
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
    result = {"run": load().record(setting, side, seed), **curves(setting, side, seed)}
    store(setting.path(side, seed), result)


def curves(setting: Setting, side: Side, seed: int, *overrides: str) -> dict[str, Any]:
    """What one run of a setting logged, by batch; of several overrides of a key the last counts.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    directory = RUNS / f"{setting.name}-{side}-seed{seed}"
    environment = dict(OWN_CLUSTER)
    if "decision_seconds" in setting.given:
        environment[EXT_MODULE] = SLOW_METAWORLD
    elif setting.given["strategy"] == "fsdp" and not torch.cuda.is_available():
        environment[EXT_MODULE] = FSDP1_ON_CPU
    train(directory, [*arguments(setting, side, seed, directory), *overrides], environment=environment)
    success = "env/return" if _pictures(setting) else "env/success_once"
    return _curves(directory, success)


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
    if seconds := given.get("decision_seconds"):
        overrides.append(f"+env.train.decision_seconds={seconds}")
    if side == "synchronous":
        return ["-n", config, *overrides, "async.mode=off"]
    return [
        *("-n", config),
        *overrides,
        "async.mode=full",
        f"async.train.max_staleness={setting.lag}",
        f"async.rollout.shards={given['shards']}",
        f"async.streamer.micro_batch_size={samples // given['shards']}",
        "async.advanced.normalization=running",
        f"async.advanced.balance={setting.balance}",
    ]


def _pictures(setting: Setting) -> bool:
    return bool(setting.given.get("policy") == "smol_vla")


def _curves(directory: Path, success: str) -> dict[str, Any]:
    """From TensorBoard, which stock RLinf writes, too; `success` is the tag of what is to be learnt."""
    scalars = read_scalars(directory)

    def curve(*tags: str) -> list[float]:
        """The first of `tags` that was logged."""
        values = next((scalars[tag] for tag in tags if tag in scalars), None)
        return [0.0] * BATCHES if values is None else [round(value, 4) for value in values.values()]

    return {
        "success": curve(success),
        "mean_lag": curve("async/staleness/mean"),
        "streamed_share": curve("train/streamed"),
        "gradient_norm": curve("train/grad_norm", "train/actor/grad_norm"),
        "seconds": curve("time/step", "async/step_seconds"),
        "trajectories": trajectories(directory),
    }
