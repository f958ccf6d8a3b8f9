"""Meta-World simulators of one task, each with its current episode."""

import pickle
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.types import Task

from rlinf_async.lab.demo.simulators.camera import Camera, RenderSettings, prepare

STATE_DIM = 39
ACTION_DIM = 4


@dataclass(frozen=True)
class TaskSettings:
    """The rules of an episode of one Meta-World task.

    An action is held for `action_repeat` simulator steps; that is one decision. An episode is over
    after `max_episode_steps` decisions, and also at success if `end_at_success`. The sparse reward is
    `reward_scale` once, at the first success; the dense one is Meta-World's own (0 to 10), averaged over
    the repeats and multiplied by `reward_scale`.
    """

    task: str
    max_episode_steps: int = 20
    action_repeat: int = 5
    reward: Literal["sparse", "dense"] = "sparse"
    reward_scale: float = 1.0
    end_at_success: bool = True

    def __post_init__(self) -> None:
        if self.task not in ALL_V3_ENVIRONMENTS:
            raise ValueError(f"unknown Meta-World task {self.task!r}: names look like 'reach-v3'")
        if self.max_episode_steps < 1 or self.action_repeat < 1:
            raise ValueError(
                f"max_episode_steps={self.max_episode_steps} and action_repeat={self.action_repeat} "
                "must both be at least 1"
            )
        if self.reward not in ("sparse", "dense"):
            raise ValueError(f"reward must be 'sparse' or 'dense', got {self.reward!r}")


def instruction(task: str) -> str:
    """Return the task in words, such as "button press topdown" for button-press-topdown-v3."""
    return task.removesuffix("-v3").replace("-", " ")


def simulator(task: str, render: RenderSettings | None = None) -> Any:
    """Return a Meta-World simulator of `task` with the goal in its state; `reset_simulator` resets it."""
    kind = ALL_V3_ENVIRONMENTS[task]
    env = kind()
    env.set_task(Task(task, pickle.dumps({"env_cls": kind, "rand_vec": None, "partially_observable": False})))
    # Goals come from the simulator's own seeded generator, never from NumPy's global one, which
    # other threads of this process draw from.
    env._freeze_rand_vec, env.seeded_rand_vec = False, True
    env.max_path_length = sys.maxsize  # `Episode` decides about the end
    if render is not None:
        prepare(env.model, render)
    return env


def reset_simulator(env: Any, seed: int) -> np.ndarray:
    """Reset `env`; equal seeds give equal initial states and goals, whatever happened before."""
    env.seed(seed)
    return env.reset()[0]


class Episode:
    """One simulator and its current episode; after its end the simulator stands still until `reset`."""

    def __init__(self, settings: TaskSettings, env: Any) -> None:
        self.env = env
        self.state = np.zeros(STATE_DIM)
        self._settings = settings
        self.elapsed = 0
        """Decisions taken since the reset."""
        self._succeeded = False
        self._over = True

    def reset(self, seed: int) -> None:
        self.state = reset_simulator(self.env, seed)
        self.elapsed, self._succeeded, self._over = 0, False, False

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Hold `action` [4] for one decision.

        Returns:
            The reward; True if the task is solved (an episode that ended by success stays solved); and True
            if the horizon is reached.
        """
        settings = self._settings
        if self._over:
            return 0.0, self._succeeded, self.elapsed >= settings.max_episode_steps
        dense, success = self._hold(np.clip(action, -1.0, 1.0))
        self.elapsed += 1
        first = success and not self._succeeded
        self._succeeded |= success
        truncated = self.elapsed >= settings.max_episode_steps
        self._over = truncated or (success and settings.end_at_success)
        reward = dense if settings.reward == "dense" else float(first)
        return reward * settings.reward_scale, success, truncated

    def _hold(self, action: np.ndarray) -> tuple[float, bool]:
        total, success = 0.0, False
        for _ in range(self._settings.action_repeat):
            self.state, reward, _, _, info = self.env.step(action)
            total += reward
            success |= bool(info["success"])
        return total / self._settings.action_repeat, success


class MetaWorldShard:
    """The simulators of one process, stepped one after the other."""

    def __init__(self, settings: TaskSettings, size: int, render: RenderSettings | None) -> None:
        self._episodes = [Episode(settings, simulator(settings.task, render)) for _ in range(size)]
        self._camera = Camera(self._episodes[0].env.model, render) if render else None

    def reset(self, indices: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Reset the simulators at `indices`; return the states and pictures of all simulators."""
        for index, seed in zip(indices, seeds, strict=True):
            self._episodes[index].reset(int(seed))
        return self._observe()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Take `actions` [size, decisions, 4] in turn.

        Returns:
            States and pictures after the last decision; rewards, successes and truncations, each
            [size, decisions]; and the decisions each episode has taken so far, [size].
        """
        results = np.array(
            [
                [episode.step(action) for action in chunk]
                for episode, chunk in zip(self._episodes, actions, strict=True)
            ]
        )
        rewards, successes, truncations = np.moveaxis(results, -1, 0)
        lengths = np.array([episode.elapsed for episode in self._episodes])
        return (*self._observe(), rewards, successes.astype(bool), truncations.astype(bool), lengths)

    def close(self) -> None:
        """Free the simulators, some 20 MB each, at once: the owner of this object may be part of a
        reference cycle.
        """
        self._episodes.clear()
        if self._camera is not None:
            self._camera.close()

    def _observe(self) -> tuple[np.ndarray, np.ndarray | None]:
        states = np.stack([episode.state for episode in self._episodes])
        if self._camera is None:
            return states, None
        pictures = [self._camera.picture(episode.env.data) for episode in self._episodes]
        return states, np.stack(pictures)
