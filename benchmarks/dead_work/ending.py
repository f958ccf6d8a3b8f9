"""An extension module of RLinf (`RLINF_EXT_MODULE`): episodes of LIBERO and Meta-World have given lengths.

A policy with random weights solves no task, so that no episode would end before the horizon. Here an episode
counts as solved once it has its given length; physics, observations and random draws stay unchanged.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.dead_work.frames import one_task

SIMULATOR_VARIABLE = "DEAD_WORK_SIMULATOR"
RESETS_VARIABLE = "DEAD_WORK_RESETS"
"""Environment variable with the path of a file; each reset appends its start, as a time of day, in a line."""
METAWORLD_TASK = "reach-v3"
LENGTH_SHARES: tuple[tuple[float, float], ...] = ((0.2, 0.6), (0.6, 0.2), (0.3, 0.5), (0.5, 0.3))
"""Episode lengths as shares of the horizon, 0.4 on average. Rollouts take the rows in turn; the first column
is for environments of even number, the second for those of odd number."""


class EarlyEnds:
    """A mixin before an environment class of RLinf; its `step` has to call `_calc_step_reward` with the array
    of terminations that it returns.
    """

    _rollouts: np.ndarray | None = None

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        with open(os.environ[RESETS_VARIABLE], "a") as file:
            file.write(f"{time.time()}\n")
        return super().reset(*args, **kwargs)  # type: ignore[misc]

    def _reset_metrics(self, env_idx: Any = None) -> None:
        super()._reset_metrics(env_idx)  # type: ignore[misc]
        if self._rollouts is None:
            self._rollouts = np.full(self.num_envs, -1)  # type: ignore[attr-defined]
        self._rollouts[slice(None) if env_idx is None else env_idx] += 1

    def _calc_step_reward(self, terminations: np.ndarray) -> Any:
        # In place: `step` returns the same array.
        np.logical_or(terminations, self.elapsed_steps >= self._lengths(), out=terminations)  # type: ignore[attr-defined]
        return super()._calc_step_reward(terminations)  # type: ignore[misc]

    def _lengths(self) -> np.ndarray:
        assert self._rollouts is not None
        numbers = self.seed_offset * self.num_envs + np.arange(self.num_envs)  # type: ignore[attr-defined]
        shares = np.array(LENGTH_SHARES)[self._rollouts % len(LENGTH_SHARES), numbers % 2]
        return shares * self.cfg.max_episode_steps  # type: ignore[attr-defined]


def register() -> None:
    """Install the mixin; RLinf calls this function in every worker."""
    if os.environ[SIMULATOR_VARIABLE] == "libero":
        from rlinf.envs.libero import libero_env as module

        name = "LiberoEnv"
    else:
        from rlinf.envs.metaworld import metaworld_env as module

        name = "MetaWorldEnv"
        # RLinf's wheel lacks the file with the names of Meta-World's tasks.
        module.MetaWorldBenchmark = one_task(METAWORLD_TASK)
    stock = getattr(module, name)
    if not issubclass(stock, EarlyEnds):
        setattr(module, name, type(name, (EarlyEnds, stock), {"__module__": stock.__module__}))
