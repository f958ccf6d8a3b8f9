"""RLinf's LIBERO and Meta-World with episodes of lengths that are known before: an extension module of RLinf.

By `RLINF_EXT_MODULE`. A policy with random weights solves nothing, so that nothing would end before the
horizon. An episode counts as solved from its length on; what is simulated and drawn stays what it is.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.dead_work.frames import one_task

SIMULATOR_VARIABLE = "DEAD_WORK_SIMULATOR"
RESETS_VARIABLE = "DEAD_WORK_RESETS"
"""Names the file that gets the time of day at which each reset begins, one a line."""
METAWORLD_TASK = "reach-v3"
LENGTHS: tuple[tuple[float, float], ...] = ((0.2, 0.6), (0.6, 0.2), (0.3, 0.5), (0.5, 0.3))
"""By rollout, of environments with an even and with an odd number: shares of the horizon, on average 0.4."""


class EarlyEnds:
    """Stands before a class of RLinf whose `step` computes the reward of the ends that it returns."""

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
        # In place: `step` goes on with the same array.
        np.logical_or(terminations, self.elapsed_steps >= self._lengths(), out=terminations)  # type: ignore[attr-defined]
        return super()._calc_step_reward(terminations)  # type: ignore[misc]

    def _lengths(self) -> np.ndarray:
        assert self._rollouts is not None
        numbers = self.seed_offset * self.num_envs + np.arange(self.num_envs)  # type: ignore[attr-defined]
        return np.array(LENGTHS)[self._rollouts % len(LENGTHS), numbers % 2] * self.cfg.max_episode_steps  # type: ignore[attr-defined]


def register() -> None:
    """What RLinf calls in every worker."""
    if os.environ[SIMULATOR_VARIABLE] == "libero":
        from rlinf.envs.libero import libero_env as module

        name = "LiberoEnv"
    else:
        from rlinf.envs.metaworld import metaworld_env as module

        name = "MetaWorldEnv"
        # RLinf's wheel lacks the file of names.
        module.MetaWorldBenchmark = one_task(METAWORLD_TASK)
    stock = getattr(module, name)
    if not issubclass(stock, EarlyEnds):
        setattr(module, name, type(name, (EarlyEnds, stock), {"__module__": stock.__module__}))
