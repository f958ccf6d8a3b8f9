"""The environments: emulated ones, or Meta-World. Pictures are noise in both; nothing is rendered."""

from __future__ import annotations

import os

import numpy as np

from benchmarks.gpu.policy import CHUNK_ACTIONS, IMAGE_NUMBERS
from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.emulated.service import EmulatedBatch, EnvService

DECISION_CV, FASTEST_FACTOR, SLOWEST_FACTOR, RESET_DECISIONS = 0.3, 0.7, 1.4, 17.5
"""Decision times are log-normal with this coefficient of variation; their mean is 0.7 to 1.4 times the
overall mean, depending on the task. A reset takes the time of 10 to 25 decisions, 17.5 on average."""

EMULATED_STATE_DIM, EMULATED_ACTION_DIM = 8, 7
METAWORLD_TASK = "button-press-topdown-v3"


class Pictures:
    """Noise in place of a camera's pictures."""

    def __init__(self, size: int, *, first: int, seed: int) -> None:
        self._size = size
        self._random = np.random.default_rng((seed, first))

    def beside(self, states: np.ndarray) -> np.ndarray:
        """Return rows of a flat noise picture followed by the row of `states`, as float32."""
        pixels = self._random.random((self._size, IMAGE_NUMBERS), dtype=np.float32)
        return np.concatenate([pixels, states.astype(np.float32)], axis=1)


class EmulatedEnvs(StateEnvs):
    """Environments that sleep as long as simulators would need; rewards are noise, so that the learner has
    work.
    """

    state_dim = IMAGE_NUMBERS + EMULATED_STATE_DIM
    action_dim = CHUNK_ACTIONS * EMULATED_ACTION_DIM

    def __init__(self, service: EnvService, size: int, *, first: int, seed: int) -> None:
        self._batch = EmulatedBatch(service, size, first=first, seed=seed)
        self._pictures = Pictures(size, first=first, seed=seed)
        self._random = np.random.default_rng((seed, first, 1))
        self._states = np.zeros((size, EMULATED_STATE_DIM), dtype=np.float32)

    def begin(self) -> np.ndarray:
        self._batch.reset()
        return self._pictures.beside(self._states)

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._batch.step()
        rewards = self._random.standard_normal(len(actions), dtype=np.float32)
        return self._pictures.beside(self._states), rewards, np.zeros(len(actions), dtype=bool)


def emulated(decision_s: float, *, seed: int) -> EnvFactory:
    """Return a factory of emulated shards: a decision takes `decision_s` on average, on a core of its own."""
    service = EnvService(
        decision_s=decision_s,
        cv=DECISION_CV,
        fastest=FASTEST_FACTOR,
        slowest=SLOWEST_FACTOR,
        reset_s=RESET_DECISIONS * decision_s,
    )
    return lambda first, size: EmulatedEnvs(service, size, first=first, seed=seed)


class PicturedMetaWorld(StateEnvs):
    """Meta-World in child processes, with noise pictures; episodes last for the horizon, solved or not."""

    def __init__(self, size: int, *, first: int, seed: int, horizon: int, processes: int) -> None:
        # Imported here: emulated environments do not need the package.
        from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
        from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, STATE_DIM, TaskSettings

        task = TaskSettings(METAWORLD_TASK, max_episode_steps=horizon * CHUNK_ACTIONS, end_at_success=False)
        self.state_dim, self.action_dim = IMAGE_NUMBERS + STATE_DIM, CHUNK_ACTIONS * ACTION_DIM
        self._batch = MetaWorldBatch(task, size, first=first, seed=(seed, 0), processes=processes)
        self._pictures = Pictures(size, first=first, seed=seed)

    def begin(self) -> np.ndarray:
        return self._pictures.beside(self._batch.reset().states)

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step = self._batch.step(actions.reshape(len(actions), CHUNK_ACTIONS, -1))
        states = self._pictures.beside(step.observation.states)
        return states, step.rewards.sum(axis=1), np.zeros(len(actions), dtype=bool)

    def close(self) -> None:
        self._batch.close()


def metaworld(*, total: int, horizon: int, seed: int) -> EnvFactory:
    """Return a factory of Meta-World shards, which together have at most one process per core."""
    cores = os.cpu_count() or 1

    def build(first: int, size: int) -> PicturedMetaWorld:
        fitting = (p for p in range(2, size + 1) if size % p == 0 and p * total <= cores * size)
        processes = max(fitting, default=1)
        return PicturedMetaWorld(size, first=first, seed=seed, horizon=horizon, processes=processes)

    return build
