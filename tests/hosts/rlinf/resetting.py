"""RLinf's own ManiSkill environments on a simulator that counts, and ends the first one's episodes."""

from types import SimpleNamespace

import torch
from rlinf.envs.maniskill.maniskill_env import ManiskillEnv


class Counting:
    """Two environments; the rewards of their steps are 1, 2, ..., and each step is an end of the first."""

    device, num_envs, obs_mode = torch.device("cpu"), 2, "state"

    def __init__(self) -> None:
        self.elapsed_steps = torch.zeros(2, dtype=torch.int32)

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        self.elapsed_steps += 1  # in place, as ManiSkill on CPU
        rewards, never = self.elapsed_steps.float(), torch.zeros(2, dtype=torch.bool)
        info = {"elapsed_steps": self.elapsed_steps}
        return torch.zeros(2, 3), rewards, torch.tensor([True, False]), never, info

    def reset(self, seed=None, options=None):
        self.elapsed_steps[options.get("env_idx", slice(None))] = 0
        return torch.zeros(2, 3), {}


def maniskill() -> ManiskillEnv:
    """Environments that reset themselves and give the rewards of the simulator."""
    made = object.__new__(ManiskillEnv)
    made.env = Counting()
    made.cfg = SimpleNamespace(reward_mode="raw", wrap_obs_mode="simple")
    made.prev_step_reward = torch.zeros(2)
    made.record_metrics = made.auto_reset = True
    made.use_rel_reward = made.ignore_terminations = made.use_fixed_reset_state_ids = False
    made._init_metrics()
    return made
