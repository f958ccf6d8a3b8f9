"""The environments: emulated ones, or Meta-World. Pictures are noise in both, so that nothing is rendered."""

from __future__ import annotations

import os

import numpy as np

from benchmarks.gpu.policy import CHUNK, PIXELS
from rlinf_async.hosts.local.envs import EnvFactory, StateEnvs
from rlinf_async.lab.emulated.service import EmulatedBatch, EnvService

CV, FASTEST, SLOWEST, RESET_STEPS = 0.3, 0.7, 1.4, 17.5
"""Decisions are log-normal with this coefficient of variation, around 0.7 to 1.4 times the mean depending on
the task; a reset takes 10 to 25 decisions' time, 17.5 on average."""

EMULATED_STATE, EMULATED_ACTION = 8, 7
TASK = "button-press-topdown-v3"


class Pictures:
    """Noise where a camera's picture would be."""

    def __init__(self, size: int, *, first: int, seed: int) -> None:
        self._size = size
        self._random = np.random.default_rng((seed, first))

    def beside(self, states: np.ndarray) -> np.ndarray:
        """Rows of a flat picture and a state."""
        pixels = self._random.random((self._size, PIXELS), dtype=np.float32)
        return np.concatenate([pixels, states.astype(np.float32)], axis=1)


class EmulatedEnvs(StateEnvs):
    """Environments that sleep as long as simulators would need.

    Rewards are noise: the learner is to have work, not success.
    """

    state_dim = PIXELS + EMULATED_STATE
    action_dim = CHUNK * EMULATED_ACTION

    def __init__(self, service: EnvService, size: int, *, first: int, seed: int) -> None:
        self._batch = EmulatedBatch(service, size, first=first, seed=seed)
        self._pictures = Pictures(size, first=first, seed=seed)
        self._random = np.random.default_rng((seed, first, 1))
        self._states = np.zeros((size, EMULATED_STATE), dtype=np.float32)

    def begin(self) -> np.ndarray:
        self._batch.reset()
        return self._pictures.beside(self._states)

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._batch.step()
        rewards = self._random.standard_normal(len(actions), dtype=np.float32)
        return self._pictures.beside(self._states), rewards, np.zeros(len(actions), dtype=bool)


def emulated(decision_s: float, *, seed: int) -> EnvFactory:
    """Shards of environments that need `decision_s` for a decision on average, a core each."""
    service = EnvService(
        decision_s=decision_s, cv=CV, fastest=FASTEST, slowest=SLOWEST, reset_s=RESET_STEPS * decision_s
    )
    return lambda first, size: EmulatedEnvs(service, size, first=first, seed=seed)


class PicturedMetaWorld(StateEnvs):
    """Meta-World in child processes, with pictures beside; episodes last for the horizon, solved or not."""

    def __init__(self, size: int, *, first: int, seed: int, horizon: int, processes: int) -> None:
        # Here, because emulated environments do not need the package.
        from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
        from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, STATE_DIM, TaskSettings

        task = TaskSettings(TASK, max_episode_steps=horizon * CHUNK, end_at_success=False)
        self.state_dim, self.action_dim = PIXELS + STATE_DIM, CHUNK * ACTION_DIM
        self._batch = MetaWorldBatch(task, size, first=first, seed=(seed, 0), processes=processes)
        self._pictures = Pictures(size, first=first, seed=seed)

    def begin(self) -> np.ndarray:
        return self._pictures.beside(self._batch.reset().states)

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step = self._batch.step(actions.reshape(len(actions), CHUNK, -1))
        states = self._pictures.beside(step.observation.states)
        return states, step.rewards.sum(axis=1), np.zeros(len(actions), dtype=bool)

    def close(self) -> None:
        self._batch.close()


def metaworld(*, total: int, horizon: int, seed: int) -> EnvFactory:
    """Shards of Meta-World's simulators; all of them together have at most a process per core."""
    cores = os.cpu_count() or 1

    def build(first: int, size: int) -> PicturedMetaWorld:
        fitting = (p for p in range(2, size + 1) if size % p == 0 and p * total <= cores * size)
        processes = max(fitting, default=1)
        return PicturedMetaWorld(size, first=first, seed=seed, horizon=horizon, processes=processes)

    return build
