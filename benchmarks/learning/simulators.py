"""Fast simulation of several Meta-World tasks in one run, and cloned starting policies for them.

The physics is Meta-World's, step by step. Two kinds of work are saved. A decision holds an action for several
simulator steps, and only the last steps compute observations: success is judged at the end of a decision,
while `MetaWorldBatch` judges every step. And a task has `GOAL_COUNT` fixed goals, as in Meta-World's own MT1
benchmark; the state after the reset to each goal is stored, because a reset costs as much as thirty steps.
Starting policies for several tasks at once are cloned from experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from benchmarks.learning.points import TEST_SEEDS, Trial
from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.metaworld_expert import Demonstrations, demonstrate
from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, STATE_DIM, reset_simulator, simulator
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start import State, cloning_epochs, search

GOAL_COUNT = 50
ACTION_REPEAT = 5
"""Simulator steps in a decision."""

_MOVED_ARRAYS = ("body_pos", "body_quat", "site_pos", "geom_pos")
"""Arrays of a MuJoCo model that a reset may change."""


@dataclass(frozen=True)
class _Snapshot:
    """A simulator just after a reset."""

    physics: np.ndarray
    model: dict[str, np.ndarray]
    attributes: dict[str, Any]
    state: np.ndarray


@dataclass
class TaskSimulator:
    """A simulator of `task`, and snapshots after the resets to the goals used so far."""

    task: str
    _snapshots: dict[int, _Snapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._env = simulator(self.task)
        self._kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)

    def reset(self, goal: int) -> np.ndarray:
        """Start an episode of goal number `goal`; return the state [39]."""
        if goal not in self._snapshots:
            state = reset_simulator(self._env, int(np.random.SeedSequence(goal).generate_state(1)[0]))
            self._snapshots[goal] = self._take(state)
        kept = self._snapshots[goal]
        env = self._env
        for name, values in kept.model.items():
            getattr(env.model, name)[:] = values
        env.__dict__.update(
            {
                name: value.copy() if isinstance(value, np.ndarray) else value
                for name, value in kept.attributes.items()
            }
        )
        mujoco.mj_setState(env.model, env.data, kept.physics, self._kind)
        mujoco.mj_forward(env.model, env.data)
        return kept.state.copy()

    def decide(self, action: np.ndarray) -> tuple[np.ndarray, bool]:
        """Hold `action` [4] for one decision; return the next state [39], and True if the task is solved."""
        env = self._env
        for _ in range(ACTION_REPEAT - 2):
            env.set_xyz_action(action[:3])
            env.do_simulation([action[-1], -action[-1]], n_frames=env.frame_skip)
            env.curr_path_length += 1
        env.step(action)  # a state also holds the observation of the previous simulator step
        state, _, _, _, info = env.step(action)
        return state, bool(info["success"])

    def _take(self, state: np.ndarray) -> _Snapshot:
        env = self._env
        physics = np.empty(mujoco.mj_stateSize(env.model, self._kind))
        mujoco.mj_getState(env.model, env.data, physics, self._kind)
        plain = (np.ndarray, np.generic, int, float, tuple)
        return _Snapshot(
            physics=physics,
            model={name: getattr(env.model, name).copy() for name in _MOVED_ARRAYS},
            attributes={
                name: value.copy() if isinstance(value, np.ndarray) else value
                for name, value in env.__dict__.items()
                if isinstance(value, plain)
            },
            state=state.copy(),
        )


@cache
def task_simulator(task: str, number: int) -> TaskSimulator:
    """Return simulator `number` of `task` in this process; resets make runs independent of earlier ones."""
    return TaskSimulator(task)


class MixedTasks(StateEnvs):
    """Environments `first` to `first + size` of a run, with their own tasks, or after `take_on` with those of
    another shard.

    The k-th episode of an environment has the same goal on every shard, and so do the members of a group.
    Solving the task gives a reward of 1, once.
    """

    state_dim = STATE_DIM
    action_dim = ACTION_DIM

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        first: int,
        size: int,
        group_size: int,
        seed: int,
        stats: ObservationStats,
    ) -> None:
        """`tasks` has the task of each environment of the run."""
        self._tasks, self._group_size = tasks, group_size
        self._numbers = range(first, first + size)
        self._seed, self._stats = seed, stats
        self._states = np.zeros((size, STATE_DIM))
        self._ended = np.zeros(size, dtype=bool)
        self.take_on(first // size, 0)

    def take_on(self, seed_offset: int, rollout: int) -> None:
        """Let the next reset begin rollout `rollout` of the environments of shard `seed_offset`."""
        size = len(self._numbers)
        places = range(seed_offset * size, (seed_offset + 1) * size)
        self._simulators = [
            task_simulator(self._tasks[place], own) for place, own in zip(places, self._numbers, strict=True)
        ]
        self._groups = [place // self._group_size for place in places]
        self._episode = rollout

    def begin(self) -> np.ndarray:
        goals = [
            int(np.random.default_rng((self._seed, group, self._episode)).integers(GOAL_COUNT))
            for group in self._groups
        ]
        self._states = np.stack([one.reset(goal) for one, goal in zip(self._simulators, goals, strict=True)])
        self._ended[:] = False
        self._episode += 1
        return self._stats.normalise(self._states)

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards = np.zeros(len(actions), dtype=np.float32)
        for index in np.flatnonzero(~self._ended):
            action = np.clip(actions[index], -1.0, 1.0)
            self._states[index], solved = self._simulators[index].decide(action)
            rewards[index], self._ended[index] = solved, solved
        return self._stats.normalise(self._states), rewards, self._ended.copy()

    def close(self) -> None:
        """Do nothing: the simulators serve the next run of this process."""


def mixed_tasks(tasks: Sequence[str], *, group_size: int, seed: int, stats: ObservationStats) -> EnvFactory:
    """Return a factory of `MixedTasks`; `tasks` has the task of each environment of the run."""

    def build(first: int, size: int) -> MixedTasks:
        return MixedTasks(tasks, first=first, size=size, group_size=group_size, seed=seed, stats=stats)

    return build


STARTS_FOLDER = Path("runs/mixed_starts")


@dataclass(frozen=True, kw_only=True)
class MixedStart:
    """Settings of a policy that is cloned from the experts of `tasks` up to a share of solved test episodes.

    The share is that of all tasks together, with sampled actions. It lies between `lowest_success` and
    `highest_success` if a mixture of two epochs of cloning does.
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
        return STARTS_FOLDER / f"{tasks}-{self.horizon}-{band}-seed{self.seed}.pt"


@dataclass(frozen=True)
class Start:
    """A starting policy: parameters, scale of the states, and measured success."""

    weights: State
    stats: ObservationStats
    success: float


def mixed_start(settings: MixedStart, *, epochs_between_trials: int = 1) -> Start:
    """Make the start, or read the file of an earlier call with equal settings."""
    if not settings.path.exists():
        _make(settings, epochs_between_trials)
    stored = torch.load(settings.path, weights_only=True)
    mean, std = (stored[name].numpy() for name in ("mean", "std"))
    return Start(stored["weights"], ObservationStats(mean=mean, std=std), stored["success"])


def _make(settings: MixedStart, epochs_between_trials: int) -> None:
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
        epochs = islice(cloning_epochs(settings, demonstrations, stats), 0, None, epochs_between_trials)
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
