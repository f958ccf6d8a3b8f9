"""A cell under veRL: the packaged config with this package's command, on a Ray cluster of its own."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from benchmarks.learning.cells import ENV_STEPS_PER_BATCH, Cell, Curve, write
from benchmarks.learning.rlinf_cell import RUNS, flat, train, trajectories
from rlinf_async.observe.run_dir import RunDir

CONFIGS = {"ppo": "verl_metaworld_ppo_mlp", "grpo": "verl_metaworld_grpo_mlp"}


def run(cell: Cell) -> None:
    """Train the cell and write its curve.

    Raises:
        RuntimeError: the run failed; the end of its output.
    """
    directory = RUNS / cell.name
    overrides = [
        f"env.train.task_name={cell.task}",
        f"trainer.total_training_steps={cell.batches}",
        f"vla.run_dir={directory}",
        f"actor_rollout_ref.actor.data_loader_seed={cell.seed}",
        f"warm_start.seed={cell.seed}",
        *flat("async", cell.asynchrony),
    ]
    train(directory, ["-n", CONFIGS[cell.algorithm], *overrides])
    facts = RunDir(directory).read(RunDir(directory).facts)
    told = {"trajectories": trajectories(directory), "versions": facts.get("versions")}
    write(cell, _curve(directory, cell.batches), told)


def _curve(directory: Path, batches: int) -> Curve:
    steps = RunDir(directory).read_metrics()
    if len(steps) != batches:
        raise RuntimeError(f"{directory.name} has logged {len(steps)} of {batches} steps")
    return Curve(
        env_steps=[ENV_STEPS_PER_BATCH * (batch + 1) for batch in range(batches)],
        seconds=list(accumulate(step["async/step_seconds"] for step in steps)),
        success=[step["env/success_once"] for step in steps],
        returns=[step["env/return"] for step in steps],
        staleness=[step["async/staleness/mean"] for step in steps],
    )
