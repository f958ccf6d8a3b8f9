"""Meta-World with one task, behind the hosts' interface of environments."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch

from rlinf_async.lab.demo.simulators.camera import RenderSettings
from rlinf_async.lab.demo.simulators.metaworld import ChunkOutcome, MetaWorldBatch, Observation
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings, instruction
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats

TRAIN_STREAM, EVAL_STREAM = 0, 1


@dataclass(frozen=True)
class MetaWorldEnvSettings:
    """The keys of an `env.train` or `env.eval` section that MetaWorldTaskEnv reads.

    max_episode_steps counts decisions; a decision holds its action for `action_repeat` simulator steps.
    `image_size: null` (or 0) leaves pictures out. `obs_stats` is the path of an ObservationStats file.
    `processes: 0` keeps the simulators in the worker's own process.
    """

    task_name: str
    max_episode_steps: int
    seed: int
    group_size: int
    auto_reset: bool
    ignore_terminations: bool
    is_eval: bool = False
    action_repeat: int = 5
    reward_kind: Literal["sparse", "dense"] = "sparse"
    reward_scale: float = 1.0
    processes: int = 0
    image_size: int | None = None
    obs_stats: str | None = None

    @classmethod
    def parse(cls, cfg: Any) -> "MetaWorldEnvSettings":
        """Read the known keys of the mapping `cfg`; the other keys are the host's."""
        values = {field.name: cfg[field.name] for field in fields(cls) if field.name in cfg}
        missing = {"task_name", "max_episode_steps", "seed", "group_size"} - values.keys()
        if missing:
            raise ValueError(f"the Meta-World environment section lacks {sorted(missing)}")
        return cls(**values)

    def batch(self, num_envs: int, *, shard: int) -> MetaWorldBatch:
        """Return the simulators of shard number `shard`; an environment has the same goals in every shard."""
        return MetaWorldBatch(
            TaskSettings(
                self.task_name,
                max_episode_steps=self.max_episode_steps,
                action_repeat=self.action_repeat,
                reward=self.reward_kind,
                reward_scale=self.reward_scale,
                end_at_success=not self.ignore_terminations,
            ),
            num_envs,
            group_size=self.group_size,
            first=shard * num_envs,
            seed=(self.seed, EVAL_STREAM if self.is_eval else TRAIN_STREAM, 0),
            processes=self.processes,
            render=RenderSettings(self.image_size) if self.image_size else None,
            obs_stats=ObservationStats.load(Path(self.obs_stats)) if self.obs_stats else None,
        )


class MetaWorldTaskEnv(gymnasium.Env):
    """`num_envs` simulators of one Meta-World task; hosts call `reset` and `chunk_step`.

    Unlike RLinf's class of Meta-World it keeps to one task, gives the members of a group the same goal, and
    shows the whole 39-d state. An instance belongs to the thread that built it. `close()` ends its processes.
    """

    def __init__(
        self,
        cfg: Any,
        num_envs: int,
        seed_offset: int,
        total_num_processes: int,
        worker_info: object,
    ) -> None:
        del total_num_processes, worker_info  # part of the signature
        settings = MetaWorldEnvSettings.parse(cfg)
        self.num_envs = num_envs
        self.auto_reset = settings.auto_reset
        self.ignore_terminations = settings.ignore_terminations
        self.is_start = True
        self._is_eval = settings.is_eval
        self._instructions = [instruction(settings.task_name)] * num_envs
        self._simulators = settings.batch(num_envs, shard=seed_offset)
        self._success_once = torch.zeros(num_envs, dtype=torch.bool)
        self._returns = torch.zeros(num_envs)

    def reset(self, env_idx: np.ndarray | None = None, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the next episode of the environments at `env_idx` (all by default).

        Returns:
            The observations of all environments, and no information.
        """
        rows = slice(None) if env_idx is None else env_idx
        self._success_once[rows] = False
        self._returns[rows] = 0.0
        return self._wrap(self._simulators.reset(env_idx)), {}

    def take_on(self, seed_offset: int, rollout: int) -> None:
        """Let the next reset begin rollout number `rollout` of the environments of shard `seed_offset`."""
        self._simulators.take_on(seed_offset * self.num_envs, rollout)

    def update_reset_state_ids(self) -> None:
        """Called between rollouts: every reset draws new goals by itself, but evaluation starts over."""
        if self._is_eval:
            self._simulators.rewind()

    def chunk_step(
        self, chunk_actions: torch.Tensor | np.ndarray
    ) -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Take the actions [num_envs, chunk, 4] in turn.

        Returns:
            The observation after the chunk, in a list of one; rewards, terminations and truncations, each
            [num_envs, chunk]; and the information after the chunk, in a list of one. With `auto_reset` or
            `ignore_terminations`, flags stand at the chunk's last decision; otherwise they stand at their own
            decision and stay up.
        """
        step = self._simulators.step(np.asarray(chunk_actions))
        rewards = torch.from_numpy(step.rewards)
        truncations = torch.from_numpy(step.truncations)
        terminations = torch.from_numpy(step.successes)
        observation, infos = self._wrap(step.observation), {"episode": self._episode(step)}
        if self.ignore_terminations:
            terminations = torch.zeros_like(terminations)
        if self.auto_reset or self.ignore_terminations:
            terminations, truncations = _at_the_end(terminations), _at_the_end(truncations)
        dones = (terminations | truncations).any(dim=1)
        if self.auto_reset and dones.any():
            observation, infos = self._restart(dones, observation, infos)
        return [observation], rewards, terminations, truncations, [infos]

    def abort(self, reason: str) -> bool:
        """End the processes of simulators that do not answer; see `MetaWorldBatch.abort`."""
        return self._simulators.abort(reason)

    def close(self) -> None:
        self._simulators.close()

    def _restart(
        self, dones: torch.Tensor, final_observation: dict[str, Any], final_info: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, _ = self.reset(np.flatnonzero(dones.numpy()))
        return observation, {
            "final_observation": final_observation,
            "final_info": final_info,
            "_final_observation": dones,
            "_final_info": dones,
        }

    def _episode(self, step: ChunkOutcome) -> dict[str, torch.Tensor]:
        self._returns += torch.from_numpy(step.rewards.sum(axis=1))
        self._success_once |= torch.from_numpy(step.successes.any(axis=1))
        lengths = torch.from_numpy(step.lengths)
        metrics = {
            "success_once": self._success_once.clone(),
            "return": self._returns.clone(),
            "episode_len": lengths,
            "reward": self._returns / lengths,
        }
        if self.ignore_terminations:
            metrics["success_at_end"] = torch.from_numpy(step.successes[:, -1].copy())
        return metrics

    def _wrap(self, observation: Observation) -> dict[str, Any]:
        wrapped: dict[str, Any] = {
            "states": torch.from_numpy(observation.states),
            "task_descriptions": list(self._instructions),
        }
        if observation.images is not None:
            wrapped["main_images"] = torch.from_numpy(observation.images)
        return wrapped


def _at_the_end(flags: torch.Tensor) -> torch.Tensor:
    """Return `flags` [num_envs, chunk] with every True of a chunk moved to its last decision."""
    moved = torch.zeros_like(flags)
    moved[:, -1] = flags.any(dim=1)
    return moved
