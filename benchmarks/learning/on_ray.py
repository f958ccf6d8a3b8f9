"""A run on RLinf or veRL: the real command on a Ray cluster; without levels RLinf's stock workers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.cells import ENV_STEPS_PER_BATCH, Cell, Curve, store, write
from benchmarks.learning.preregistration import STEPS, Setting, Side, load
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.observe.run_dir import RunDir

RUNS = Path("runs")
DEADLINE_S = 4 * 3600.0
CONFIGS = {"rlinf": "metaworld_{}_mlp", "verl": "verl_metaworld_{}_mlp"}
"""The config of each host, by algorithm."""


def run_cell(cell: Cell) -> None:
    """Train the cell and write its curve.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    directory = RUNS / cell.name
    overrides = [
        f"env.train.task_name={cell.task}",
        *SIDES_BY_HOST[cell.host].run(directory=directory, steps=cell.batches, seed=cell.seed),
        f"warm_start.seed={cell.seed}",
        *flat("async", cell.asynchrony),
    ]
    train(directory, ["-n", CONFIGS[cell.host].format(cell.algorithm), *overrides])
    facts = RunDir(directory).read(RunDir(directory).facts)
    seen = {"trajectories": trajectories(directory), "versions": facts.get("versions")}
    write(cell, _curve(directory, cell), seen)


def flat(prefix: str, block: Any) -> list[str]:
    """The overrides of a block of a config, one for each of its leaves."""
    if not isinstance(block, dict):
        return [f"{prefix}={json.dumps(block)}"]
    return [line for key, value in block.items() for line in flat(f"{prefix}.{key}", value)]


def _curve(directory: Path, cell: Cell) -> Curve:
    """Return the curve from our own metrics under veRL, and from TensorBoard, which stock RLinf writes, too.

    Raises:
        RuntimeError: steps are missing.
    """
    if cell.host == "verl":
        steps = RunDir(directory).read_metrics()
        series = {name: [step[name] for step in steps] for name in (steps[0] if steps else ())}
    else:
        series = {tag: list(values.values()) for tag, values in read_scalars(directory).items()}
    seconds = series.get("time/step") or series.get("async/step_seconds", [])
    if len(seconds) != cell.batches:
        raise RuntimeError(f"{directory.name} has logged {len(seconds)} of {cell.batches} steps")
    return Curve(
        env_steps=[ENV_STEPS_PER_BATCH * (batch + 1) for batch in range(cell.batches)],
        seconds=list(accumulate(seconds)),
        success=series["env/success_once"],
        returns=series["env/return"],
        staleness=series.get("async/staleness/mean", [0.0] * cell.batches),
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


EXT_MODULE = "RLINF_EXT_MODULE"
FSDP1_ON_CPU = "benchmarks.learning.fsdp1_on_cpu"
SLOW_METAWORLD = "benchmarks.learning.slow_metaworld"
BATCHES = 30
LR = {1: 3e-4, 4: 2e-4}
"""By update epochs."""
SAMPLES = {"states": 32 * 20, "pictures": 8 * 4}
"""In a batch of the packaged configs."""


def run_setting(setting: Setting, side: Side, seed: int) -> None:
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
        *SIDES_BY_HOST["rlinf"].run(directory=directory, steps=BATCHES, seed=seed),
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
