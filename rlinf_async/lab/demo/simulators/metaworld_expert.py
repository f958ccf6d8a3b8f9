"""Demonstrations by Meta-World's scripted experts."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from metaworld.policies import ENV_POLICY_MAP

from rlinf_async.lab.demo.simulators.metaworld_task import reset_simulator, simulator


@dataclass(frozen=True)
class Demonstrations:
    """States [samples, 39] in the simulator's units and the expert's actions [samples, 4] in [-1, 1].

    Every `steps` samples are an episode.
    """

    states: np.ndarray
    actions: np.ndarray
    steps: int

    def chunks(self, size: int, *, every: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return states [samples, 39], and the `size` actions after each state [samples, size, 4].

        One of `every` actions is taken, for environments that hold an action for `every` steps.
        """
        starts = self.steps - every * (size - 1)
        states = self.states.reshape(-1, self.steps, self.states.shape[1])[:, :starts]
        actions = self.actions.reshape(-1, self.steps, self.actions.shape[1])
        following = np.stack(
            [actions[:, first : first + starts] for first in range(0, size * every, every)], 2
        )
        return states.reshape(-1, states.shape[2]), following.reshape(-1, size, actions.shape[2])


def demonstrate(task: str, *, episodes: int, steps: int, seed: int) -> Demonstrations:
    """Let the expert of `task` play `episodes` episodes of `steps` simulator steps, one action each."""
    if episodes < 1 or steps < 1:
        raise ValueError(f"episodes={episodes} and steps={steps} must both be at least 1")
    expert_of: dict[str, Any] = ENV_POLICY_MAP
    env, expert = simulator(task), expert_of[task]()
    states, actions = [], []
    for episode in range(episodes):
        state = reset_simulator(env, int(np.random.SeedSequence((seed, episode)).generate_state(1)[0]))
        for _ in range(steps):
            action = _action(expert, state)
            states.append(state)
            actions.append(action)
            state = env.step(action)[0]
    return Demonstrations(np.array(states, dtype=np.float32), np.array(actions, dtype=np.float32), steps)


def _action(expert: Any, state: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        # The expert warns that its actions exceed the bounds: they are clipped here, as environments do.
        warnings.filterwarnings("ignore", message="Constant")
        return np.clip(expert.get_action(state), -1.0, 1.0)
