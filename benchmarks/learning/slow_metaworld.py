"""Meta-World with slow simulators, unequally so: an extension module of RLinf, by `RLINF_EXT_MODULE`.

On a CPU a policy that sees pictures trains for longer than these small simulators play, so that every batch
is whole when its training begins, and level 3 has nothing to stream. Real simulators with cameras are slower
than that: each decision waits for as long as the config says, and what is simulated stays what it is.
"""

from __future__ import annotations

import time
from typing import Any

from rlinf_async.lab.demo.simulators import metaworld_env

KEY = "decision_seconds"
"""Of the section of the environments: seconds of a decision in the first of them, and in the last."""


class SlowMetaWorld(metaworld_env.MetaWorldTaskEnv):
    """Each decision of a batch of environments lasts as long as that of its slowest, which is its last."""

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        super().__init__(cfg, num_envs, seed_offset, total_num_processes, worker_info)
        fast, slow = cfg[KEY]
        last, all_envs = (seed_offset + 1) * num_envs, cfg["total_num_envs"]
        self._seconds = fast + (slow - fast) * (last - 1) / (all_envs - 1)

    def chunk_step(self, chunk_actions: Any) -> Any:
        time.sleep(self._seconds)
        return super().chunk_step(chunk_actions)


def register() -> None:
    """What RLinf calls in every worker."""
    metaworld_env.MetaWorldTaskEnv = SlowMetaWorld  # type: ignore[misc]
