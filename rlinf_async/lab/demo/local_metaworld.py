"""Meta-World as environments of the local host."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, STATE_DIM, TaskSettings
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats


class MetaWorldEnvs(StateEnvs):
    """Simulators of one task; states are normalised by `obs_stats`, and a decision is one action."""

    state_dim = STATE_DIM
    action_dim = ACTION_DIM

    def __init__(self, simulators: MetaWorldBatch, size: int) -> None:
        self._simulators, self._size = simulators, size

    def begin(self) -> np.ndarray:
        return self._simulators.reset().states

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step = self._simulators.step(actions[:, None])
        return step.observation.states, step.rewards[:, 0], step.successes[:, 0]

    def skip(self, episodes: int) -> None:
        self._simulators.skip(episodes)

    def take_on(self, seed_offset: int, rollout: int) -> None:
        self._simulators.take_on(seed_offset * self._size, rollout)

    def abort(self, reason: str) -> bool:
        return self._simulators.abort(reason)

    def close(self) -> None:
        self._simulators.close()


def metaworld(
    task: TaskSettings,
    *,
    obs_stats: Path | None = None,
    group_size: int = 1,
    seed: int = 0,
    processes: int = 0,
) -> EnvFactory:
    """Return a factory of shards of `task`; an environment has the same goals in every shard.

    With `processes` above 0 each shard simulates in that many child processes; otherwise in its thread, which
    then shares Python's interpreter lock with all other loops.
    """
    stats = None if obs_stats is None else ObservationStats.load(obs_stats)

    def build(first: int, size: int) -> MetaWorldEnvs:
        simulators = MetaWorldBatch(
            task,
            size,
            first=first,
            group_size=group_size,
            seed=(seed, 0),
            processes=processes,
            obs_stats=stats,
        )
        return MetaWorldEnvs(simulators, size)

    return build
