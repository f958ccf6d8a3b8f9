"""An extension module of RLinf (`RLINF_EXT_MODULE`) that slows Meta-World's environments down, unequally.

On a CPU a policy with pictures trains for longer than these small simulators play, so that every batch is
complete when its training begins, and level 3 has nothing to stream. Real simulators with cameras are slower:
here each decision waits for the time that the config gives, and the simulation itself is unchanged.
"""

from __future__ import annotations

import time
from typing import Any

from rlinf_async.lab.demo.simulators import metaworld_env

DECISION_SECONDS_KEY = "decision_seconds"
"""Key of the environments' config section: seconds of a decision of the first environment and of the last."""


class SlowMetaWorld(metaworld_env.MetaWorldTaskEnv):
    """Meta-World that takes for each decision the time of its slowest environment, the last of the batch."""

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        super().__init__(cfg, num_envs, seed_offset, total_num_processes, worker_info)
        fast, slow = cfg[DECISION_SECONDS_KEY]
        last, all_envs = (seed_offset + 1) * num_envs, cfg["total_num_envs"]
        self._seconds = fast + (slow - fast) * (last - 1) / (all_envs - 1)

    def chunk_step(self, chunk_actions: Any) -> Any:
        time.sleep(self._seconds)
        return super().chunk_step(chunk_actions)


def register() -> None:
    """Install the class; RLinf calls this function in every worker."""
    metaworld_env.MetaWorldTaskEnv = SlowMetaWorld  # type: ignore[misc]
