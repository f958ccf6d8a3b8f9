"""Environments of which the first two shards fail once each."""

import os
import signal

from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldTaskEnv


class FlakyEnv(MetaWorldTaskEnv):
    """It fails in its second rollout: shard 0 by an error, shard 1 by the death of its simulator."""

    def __init__(self, cfg, num_envs, seed_offset, *rest, **keywords):
        super().__init__(cfg, num_envs, seed_offset, *rest, **keywords)
        self.fails = seed_offset if cfg.seed < 7919 and not cfg.is_eval else None
        self.steps = 0

    def chunk_step(self, actions):
        self.steps += 1
        if self.steps == 6 and self.fails == 0:
            raise FloatingPointError("the simulator has exploded")
        if self.steps == 6 and self.fails == 1:
            os.kill(self._simulators.pids[0], signal.SIGKILL)
        return super().chunk_step(actions)
