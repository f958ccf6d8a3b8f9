"""Which runs each experiment consists of."""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.learning.cells import Cell

PRESS, REACH, DRAWER = "button-press-topdown-v3", "reach-v3", "drawer-close-v3"

SETTINGS: tuple[tuple[str, Literal["ppo", "grpo"]], ...] = (
    (PRESS, "ppo"),
    (REACH, "ppo"),
    (DRAWER, "ppo"),
    (PRESS, "grpo"),
)
"""Tasks and algorithms on which `full` is compared with the synchronous loop."""

BATCHES = 30

STALENESS = (0, 1, 2, 4, 8)
CORRECTIONS = ("none", "decoupled", "tis")

LEVELS: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "train": {"mode": "train"},
    "rollout": {"mode": "rollout"},
    "streamer": {"mode": "streamer"},
    "streamer-running": {"mode": "streamer", "advanced": {"normalization": "running"}},
    "full": {"mode": "full"},
    "full-running": {"mode": "full", "advanced": {"normalization": "running"}},
}
"""PPO streams only where it is told to: with eight epochs, `auto` waits for the batch."""


def equivalence(host: Literal["local", "rlinf"], seeds: int) -> list[Cell]:
    """Synchronous and `full`, seed by seed, so that pairs share their starts and run side by side."""
    return [
        _cell(host, task, algorithm, label, LEVELS[label], BATCHES, seed)
        for seed in range(seeds)
        for task, algorithm in SETTINGS
        for label in ("off", "full")
    ]


def staleness(seeds: int) -> list[Cell]:
    """A fixed lag, reproducibly, by correction; with a lag of 0 there is nothing to correct."""
    return [
        _cell("local", PRESS, "ppo", label, block, BATCHES, seed)
        for seed in range(seeds)
        for label, block in _lags().items()
    ]


def levels(seeds: int) -> list[Cell]:
    """Each level by itself, with PPO and with GRPO."""
    return [
        _cell("local", PRESS, algorithm, label, block, BATCHES, seed)
        for seed in range(seeds)
        for algorithm in ("ppo", "grpo")
        for label, block in LEVELS.items()
        if algorithm == "ppo" or not label.endswith("running")
    ]


def _lags() -> dict[str, dict[str, Any]]:
    blocks: dict[str, dict[str, Any]] = {"off": {"mode": "off"}}
    for lag in STALENESS[1:]:
        for correction in CORRECTIONS:
            train = {"max_staleness": lag, "correction": correction}
            blocks[f"lag{lag}-{correction}"] = {
                "mode": "train",
                "deterministic": True,
                "train": train,
                "advanced": {"accept_bias": correction == "none"},
            }
    return blocks


def _cell(
    host: Literal["local", "rlinf"],
    task: str,
    algorithm: Literal["ppo", "grpo"],
    label: str,
    block: dict[str, Any],
    batches: int,
    seed: int,
) -> Cell:
    return Cell(
        host=host,
        task=task,
        algorithm=algorithm,
        label=label,
        asynchrony=block,
        batches=batches,
        seed=seed,
    )
