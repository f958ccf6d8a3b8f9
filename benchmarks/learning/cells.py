"""One training run of an experiment, and the recipe that all runs share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"
RAW = RESULTS / "raw"

ENVS, HORIZON, ACTION_REPEAT = 32, 20, 5
"""Environments, decisions an episode, and simulator steps a decision."""

RECIPES: dict[str, dict[str, Any]] = {
    "ppo": {"update_epoch": 8, "group_size": 1},
    "grpo": {"update_epoch": 4, "group_size": 8},
}
"""What the two algorithms differ in; the rest is in configs/base and the defaults of `LocalSettings`."""

ENV_STEPS_PER_BATCH = ENVS * HORIZON * ACTION_REPEAT


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run: `label` names its `async` block, under which results are compared."""

    host: Literal["local", "rlinf"]
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
        """Where the run leaves its curve; a cell whose file exists has been run."""
        return RAW / f"{self.name}.json"

    def as_json(self) -> str:
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Cell:
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a run saw after each global batch; lists of one length."""

    env_steps: list[int]
    """Simulator steps trained so far."""
    seconds: list[float]
    """Since training began, start-up not included."""
    success: list[float]
    """Share of the batch's episodes that succeeded, with the policy's sampled actions."""
    returns: list[float]
    staleness: list[float]
    """Mean policy versions between a trajectory's oldest action and its training."""


def write(cell: Cell, curve: Curve, extra: Mapping[str, Any]) -> None:
    """Store a run's result, whole or not at all."""
    rounded = {
        name: [round(float(value), 4) for value in values] if name != "env_steps" else values
        for name, values in vars(curve).items()
    }
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    draft = cell.path.with_suffix(".draft")
    draft.write_text(json.dumps({"cell": vars(cell), **extra, "curve": rounded}) + "\n")
    draft.rename(cell.path)


def read(cell: Cell) -> Curve:
    return Curve(**json.loads(cell.path.read_text())["curve"])
