"""Starting policies for several tasks at once, cloned from experts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning.simulators import mixed_tasks
from benchmarks.learning.trials import TEST_SEEDS, Trial
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.metaworld_expert import Demonstrations, demonstrate
from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, STATE_DIM
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start import State, cloning_epochs, search

STARTS = Path("runs/mixed_starts")


@dataclass(frozen=True, kw_only=True)
class MixedStart:
    """One policy cloned from the experts of `tasks`, until it solves a share of the test episodes.

    The share is of all tasks together, of sampled actions, and lies between `lowest_success` and
    `highest_success` where a mixture of two epochs of cloning does.
    """

    tasks: tuple[str, ...]
    seed: int
    horizon: int
    lowest_success: float
    highest_success: float
    demonstrations: int = 10
    demonstration_steps: int = 100
    learning_rate: float = 1e-4
    batch_size: int = 256
    log_std: float = -1.0
    max_epochs: int = 150
    episodes: int = 64

    @property
    def path(self) -> Path:
        tasks = "+".join(self.tasks)
        band = f"{self.lowest_success:g}-{self.highest_success:g}"
        return STARTS / f"{tasks}-{self.horizon}-{band}-seed{self.seed}.pt"


@dataclass(frozen=True)
class Start:
    """Parameters, the scale of the states that they are for, and the success that was measured."""

    weights: State
    stats: ObservationStats
    success: float


def mixed_start(settings: MixedStart) -> Start:
    """Make the start, or find there what an equal call made before."""
    if not settings.path.exists():
        _make(settings)
    stored = torch.load(settings.path, weights_only=True)
    mean, std = (stored[name].numpy() for name in ("mean", "std"))
    return Start(stored["weights"], ObservationStats(mean=mean, std=std), stored["success"])


def _make(settings: MixedStart) -> None:
    by_task = [
        demonstrate(
            task, episodes=settings.demonstrations, steps=settings.demonstration_steps, seed=settings.seed
        )
        for task in settings.tasks
    ]
    demonstrations = Demonstrations(
        np.concatenate([one.states for one in by_task]),
        np.concatenate([one.actions for one in by_task]),
        settings.demonstration_steps,
    )
    stats = ObservationStats.of(demonstrations.states)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        epochs = cloning_epochs(settings, demonstrations, stats)
        chosen = search(settings, epochs, _trial(settings, stats))
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    draft = settings.path.with_suffix(".draft")
    scale = {"mean": torch.from_numpy(stats.mean), "std": torch.from_numpy(stats.std)}
    torch.save({"weights": chosen.state, "success": chosen.success, **scale}, draft)
    draft.rename(settings.path)


def _trial(settings: MixedStart, stats: ObservationStats) -> Trial:
    seed = TEST_SEEDS + settings.seed
    tasks = [task for task in settings.tasks for _ in range(settings.episodes // len(settings.tasks))]
    return Trial(
        GaussianPolicy(state_dim=STATE_DIM, action_dim=ACTION_DIM),
        mixed_tasks(tasks, group_size=1, seed=seed, stats=stats),
        episodes=settings.episodes,
        horizon=settings.horizon,
        seed=seed,
    )
