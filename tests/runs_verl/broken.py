"""An environment that fails after a while, in the place of a real one."""

from __future__ import annotations

from typing import Any

from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldTaskEnv


class BrokenEnv(MetaWorldTaskEnv):
    """Raises in its tenth decision."""

    taken = 0

    def chunk_step(self, chunk_actions: Any) -> Any:
        self.taken += 1
        if self.taken == 10:
            raise FloatingPointError("the simulator has exploded")
        return super().chunk_step(chunk_actions)
