"""A training run of the earlier experiments, its result, and the recipe that all runs share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS_FOLDER = Path(__file__).parent / "results"
RAW_FOLDER = RESULTS_FOLDER / "raw"

ENV_COUNT, HORIZON_DECISIONS, ACTION_REPEAT = 32, 20, 5
"""Environments, decisions per episode, and simulator steps per decision."""

RECIPE_BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "ppo": {"update_epoch": 8, "group_size": 1},
    "grpo": {"update_epoch": 4, "group_size": 8},
}
"""Differences between the two algorithms; the rest is in configs/base and the defaults of `LocalSettings`."""

ENV_STEPS_PER_BATCH = ENV_COUNT * HORIZON_DECISIONS * ACTION_REPEAT


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run; `label` names its `async` block, and results are compared by it."""

    host: Literal["local", "rlinf", "verl"]
    task: str
    algorithm: Literal["ppo", "grpo"]
    label: str
    asynchrony: Mapping[str, Any] = field(hash=False)
    batches: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.host}-{self.algorithm}-{self.task}-{self.batches}-{self.label}-seed{self.seed}"

    @property
    def path(self) -> Path:
        """The file of the run's curve; if it exists, the run is done."""
        return RAW_FOLDER / f"{self.name}.json"

    def run(self) -> None:
        """Train, and write the curve."""
        # Imported here: the local host needs the simulators, and the others need Ray.
        if self.host == "local":
            from benchmarks.learning.local_cell import run as run_cell
        else:
            from benchmarks.learning.on_ray import run_cell
        run_cell(self)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values after each global batch of a run; all lists have the same length."""

    env_steps: list[int]
    """Simulator steps trained so far."""
    seconds: list[float]
    """Seconds since training began, without start-up."""
    success: list[float]
    """Share of the batch's episodes that succeeded, with the policy's sampled actions."""
    returns: list[float]
    staleness: list[float]
    """Mean policy versions between a trajectory's oldest action and its training."""


def write(cell: Cell, curve: Curve, extra: Mapping[str, Any]) -> None:
    """Store a run's result."""
    rounded = {
        name: [round(float(value), 4) for value in values] if name != "env_steps" else values
        for name, values in vars(curve).items()
    }
    store(cell.path, {"cell": vars(cell), **extra, "curve": rounded})


def store(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result) + "\n")
    draft.rename(path)


def read(cell: Cell) -> Curve:
    return Curve(**json.loads(cell.path.read_text())["curve"])
