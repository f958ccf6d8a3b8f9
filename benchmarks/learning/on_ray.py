"""A run of `rlinf-async train` under RLinf or veRL, on a Ray cluster; without levels, RLinf's own workers."""

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
from benchmarks.learning.preregistration import OPTIMIZER_STEPS, Setting, Side, load
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir

RUNS_FOLDER = Path("runs")
DEADLINE_S = 4 * 3600.0
CONFIG_BY_HOST = {"rlinf": "metaworld_{}_mlp", "verl": "verl_metaworld_{}_mlp"}
"""The config's name of each host, with a place for the algorithm."""


def run_cell(cell: Cell) -> None:
    """Train the cell and write its curve.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    directory = RUNS_FOLDER / cell.name
    overrides = [
        f"env.train.task_name={cell.task}",
        *SIDES_BY_HOST[cell.host].run(directory=directory, steps=cell.batches, seed=cell.seed),
        f"warm_start.seed={cell.seed}",
        *flat("async", cell.asynchrony),
    ]
    train(directory, ["-n", CONFIG_BY_HOST[cell.host].format(cell.algorithm), *overrides])
    facts = RunReader(directory).facts()
    seen = {"trajectories": trajectories(directory), "versions": facts.get("versions")}
    write(cell, _curve(directory, cell), seen)


def flat(prefix: str, block: Any) -> list[str]:
    """Return the overrides of a config block, one for each leaf."""
    if not isinstance(block, dict):
        return [f"{prefix}={json.dumps(block)}"]
    return [line for key, value in block.items() for line in flat(f"{prefix}.{key}", value)]


def _curve(directory: Path, cell: Cell) -> Curve:
    """Read the curve: under veRL from our metrics, on RLinf from TensorBoard, which stock RLinf writes, too.

    Raises:
        RuntimeError: steps are missing.
    """
    if cell.host == "verl":
        steps = RunReader(directory).metrics()
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
    """Run a program in the emptied `directory`; its output goes to `output.log` there.

    Args:
        directory: also the folder that `arguments` name for the program's logs.
        program: a module and its first arguments.
        environment: variables in addition to those of this process.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    shutil.rmtree(directory, ignore_errors=True)  # or logs of an earlier attempt would be read as well
    directory.mkdir(parents=True)
    log = directory / "output.log"
    command = [sys.executable, "-m", *program, *arguments]
    status = run_command(command, log, environment=environment, deadline_s=DEADLINE_S)
    if status:
        raise RuntimeError(f"{directory.name} ended with status {status}: {tail(log, 3000)}")


def trajectories(directory: Path) -> Any:
    """Return the ledger of a run's trajectories; None for stock RLinf, which does not count them."""
    records = RunDir(directory)
    return RunReader(records.path).summary().get("trajectories")


EXT_MODULE = "RLINF_EXT_MODULE"
FSDP1_ON_CPU = "benchmarks.learning.fsdp1_on_cpu"
SLOW_METAWORLD = "benchmarks.learning.slow_metaworld"
BATCH_COUNT = 30
LEARNING_RATES = {1: 3e-4, 4: 2e-4}
"""Learning rates by number of update epochs."""
SAMPLES_PER_BATCH = {"states": 32 * 20, "pictures": 8 * 4}
"""Samples of a batch in the packaged configs, by kind of observation."""


def run_setting(setting: Setting, side: Side, seed: int) -> None:
    """Train one run of a setting and write its result.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    result = {"run": load().record(setting, side, seed), **curves(setting, side, seed)}
    store(setting.path(side, seed), result)


def curves(setting: Setting, side: Side, seed: int, *overrides: str) -> dict[str, Any]:
    """Make one run of a setting, and return its curves, with a value for each batch.

    `overrides` come last, and so win over the setting's own.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    directory = RUNS_FOLDER / f"{setting.name}-{side}-seed{seed}"
    environment = dict(OWN_CLUSTER)
    if "decision_seconds" in setting.given:
        environment[EXT_MODULE] = SLOW_METAWORLD
    elif setting.given["strategy"] == "fsdp" and not torch.cuda.is_available():
        environment[EXT_MODULE] = FSDP1_ON_CPU
    train(directory, [*arguments(setting, side, seed, directory), *overrides], environment=environment)
    success = "env/return" if _pictures(setting) else "env/success_once"
    return _curves(directory, success)


def arguments(setting: Setting, side: Side, seed: int, directory: Path) -> list[str]:
    """Return the arguments of a run: the config and its overrides."""
    given = setting.given
    pictures = _pictures(setting)
    config = "metaworld_ppo_vla" if pictures else f"metaworld_{setting.algorithm}_mlp"
    overrides = [
        f"env.train.task_name={setting.task}",
        f"env.train.auto_reset={str(given['auto_reset']).lower()}",
        *SIDES_BY_HOST["rlinf"].run(directory=directory, steps=BATCH_COUNT, seed=seed),
        f"actor.optim.lr={LEARNING_RATES[given['update_epoch']]}",
        f"actor.fsdp_config.strategy={given['strategy']}",
        f"algorithm.update_epoch={given['update_epoch']}",
    ]
    samples = SAMPLES_PER_BATCH["pictures" if pictures else "states"]
    if pictures:
        overrides += [
            f"actor.{size}={samples // OPTIMIZER_STEPS}" for size in ("micro_batch_size", "global_batch_size")
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
    """Read a run's curves from TensorBoard, as stock RLinf has no metrics.jsonl; `success` is a tag."""
    scalars = read_scalars(directory)

    def curve(*tags: str) -> list[float]:
        """Return the values of the first of `tags` that was logged; zeros without any."""
        values = next((scalars[tag] for tag in tags if tag in scalars), None)
        return [0.0] * BATCH_COUNT if values is None else [round(value, 4) for value in values.values()]

    return {
        "success": curve(success),
        "mean_lag": curve("async/staleness/mean"),
        "streamed_share": curve("train/streamed"),
        "gradient_norm": curve("train/grad_norm", "train/actor/grad_norm"),
        "seconds": curve("time/step", "async/step_seconds"),
        "trajectories": trajectories(directory),
    }
