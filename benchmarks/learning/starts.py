"""Starting policies for several tasks at once, cloned from experts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning.simulators import mixed_tasks
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.simulators.metaworld_expert import Demonstrations, demonstrate
from rlinf_async.simulators.metaworld_task import ACTION_DIM, STATE_DIM
from rlinf_async.simulators.observation_stats import ObservationStats
from rlinf_async.warm_start import State, cloning_epochs, search

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
    shown = [
        demonstrate(
            task, episodes=settings.demonstrations, steps=settings.demonstration_steps, seed=settings.seed
        )
        for task in settings.tasks
    ]
    demonstrations = Demonstrations(
        np.concatenate([one.states for one in shown]), np.concatenate([one.actions for one in shown])
    )
    stats = ObservationStats.of(demonstrations.states)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        epochs = cloning_epochs(settings, demonstrations, stats)
        chosen = search(settings, epochs, MixedTrial(settings, stats))
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    draft = settings.path.with_suffix(".draft")
    scale = {"mean": torch.from_numpy(stats.mean), "std": torch.from_numpy(stats.std)}
    torch.save({"weights": chosen.state, "success": chosen.success, **scale}, draft)
    draft.rename(settings.path)


class MixedTrial:
    """Plays sampled test episodes, always of the same goals and with the same chance."""

    def __init__(self, settings: MixedStart, stats: ObservationStats) -> None:
        self._settings, self._stats = settings, stats
        self._policy = GaussianPolicy(state_dim=STATE_DIM, action_dim=ACTION_DIM)

    @torch.no_grad()
    def success(self, state: State, *, enough: float) -> float:
        """The share of solved episodes."""
        settings, seed = self._settings, 1_000_000 + self._settings.seed
        self._policy.load_state_dict(state)
        chance = torch.Generator().manual_seed(seed)
        each = settings.episodes // len(settings.tasks)
        tasks = [task for task in settings.tasks for _ in range(each)]
        envs = mixed_tasks(tasks, group_size=1, seed=seed, stats=self._stats)(0, len(tasks))
        states, ended = envs.reset(), np.zeros(settings.episodes, dtype=bool)
        for _ in range(settings.horizon):
            noise = torch.randn(settings.episodes, ACTION_DIM, generator=chance)
            outcome = envs.step(self._policy.sample(torch.from_numpy(states), noise).numpy())
            states, ended = outcome.states, outcome.ended
        return float(ended.mean())
