"""A vectorised simulator with the interface of an Isaac Lab environment: arms that reach for a point."""

import torch

JOINTS = 3


class Reach:
    """`num_envs` arms that step at once; a reward is given near the goal, and the episode ends there."""

    device = torch.device("cpu")

    def __init__(self, num_envs):
        self._positions = torch.zeros(num_envs, JOINTS)
        self._goals = torch.zeros(num_envs, JOINTS)

    def reset(self, seed=None, env_ids=None):
        generator = torch.Generator().manual_seed(seed or 0)
        chosen = slice(None) if env_ids is None else env_ids
        self._positions[chosen] = 0.0
        self._goals[chosen] = torch.rand(self._goals[chosen].shape, generator=generator) - 0.5
        return self._shown(), {}

    def step(self, actions):
        self._positions += 0.1 * actions.clamp(-1, 1)
        distance = (self._goals - self._positions).norm(dim=-1)
        reached = distance < 0.1
        return self._shown(), torch.exp(-distance), reached, torch.zeros_like(reached), {}

    def close(self):
        """Nothing is held."""

    def _shown(self):
        pictures = self._positions.abs().sum(-1).clamp(max=1.0).view(-1, 1, 1, 1).expand(-1, 8, 8, 3)
        return {
            "policy": {"joint_pos": self._positions.clone(), "goal": self._goals.clone()},
            "camera_images": {"front_camera": (255 * pictures).to(torch.uint8)},
        }


class App:
    """In the place of the simulator's application."""

    def close(self):
        """Nothing runs beside the simulator."""
