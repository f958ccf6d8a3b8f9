"""Emulated environments behind the hosts' interface of environments."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import torch

from rlinf_async.lab.emulated.service import EmulatedBatch, EnvService
from rlinf_async.observe.spans import SpanLog

IMAGE_SIZE = 64
STATE_SIZE = 8


class EmulatedEnv(gymnasium.Env):
    """`num_envs` environments that sleep, and show a picture and their own number.

    `states` [num_envs, 8] begins with the numbers of the environment, of its rollout and of the decision, so
    that the learner can recognise new samples. Rewards are zero; an episode that ends before the horizon has
    succeeded.
    """

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        del total_num_processes, worker_info  # part of the signature
        self.num_envs = num_envs
        self.auto_reset = bool(cfg.auto_reset)
        self.ignore_terminations = bool(cfg.ignore_terminations)
        self.is_start = True
        self._horizon = int(cfg.max_steps_per_rollout_epoch)
        service = EnvService(**cfg.service)
        self._lengths, self._seed = service.lengths, int(cfg.seed)
        self._decisions = self._horizon // service.steps
        self._ends = torch.full((num_envs,), self._decisions)
        """Decisions until the episode of each environment ends."""
        self._batch = EmulatedBatch(
            service,
            num_envs,
            first=seed_offset * num_envs,
            seed=int(cfg.seed),
            device=cfg.get("service_device"),
        )
        self._log = SpanLog(cfg.get("service_log"))
        self._states = torch.zeros(num_envs, STATE_SIZE)
        self._states[:, 0] = torch.arange(self._batch.first, self._batch.first + num_envs)
        size = int(cfg.get("image_size", IMAGE_SIZE))
        self._images = torch.from_numpy(
            np.random.default_rng(seed_offset).integers(0, 256, (num_envs, size, size, 3), dtype=np.uint8)
        )
        self._steps = 0
        self._started = False
        self._beside = ThreadPoolExecutor(1) if cfg.get("resets_ahead") else None
        self._under_way: Future[None] | None = None

    def reset(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the next rollout of all environments."""
        if self._under_way is None:
            self._reset()
        else:
            self._under_way.result()
            self._under_way = None
        self._next_rollout()
        return self._observation(), {}

    def _reset(self) -> None:
        with self._log.span("reset", first=self._batch.first) as facts:
            facts["seconds"] = self._batch.reset()

    def take_on(self, seed_offset: int, rollout: int) -> None:
        """Let the next reset begin rollout number `rollout` of the environments of shard `seed_offset`."""
        first = seed_offset * self.num_envs
        self._batch.take_on(first)
        self._states[:, 0] = torch.arange(first, first + self.num_envs)
        self._states[:, 1] = rollout - 1
        self._started = True  # the reset increments the number of the rollout

    def update_reset_state_ids(self) -> None:
        """Note the end of a rollout; environments that reset themselves go on, and count decisions from 0
        again. With `resets_ahead` the others begin to reset now, in parallel to the work that follows.
        """
        if self.auto_reset:
            self._next_rollout()
        elif self._beside is not None:
            self._under_way = self._beside.submit(self._reset)

    def chunk_step(
        self, chunk_actions: object
    ) -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Take a decision; rewards and flags are [num_envs, chunk]."""
        with self._log.span("step", first=self._batch.first) as facts:
            facts["seconds"], ended = self._batch.step()
            if self._lengths is not None:
                facts["shares"] = self._shares()
        chunk = int(np.asarray(chunk_actions).shape[1])
        self._steps += chunk
        self._states[:, 2] += 1
        truncations = torch.zeros(self.num_envs, chunk, dtype=torch.bool)
        if self.auto_reset:
            truncations[:, -1] = torch.tensor(ended)
        elif self._steps >= self._horizon:
            truncations[:, -1] = True
        succeeded = self._succeeded()
        infos: dict[str, Any] = {"episode": self._episode(succeeded)}
        if self.auto_reset and any(ended):
            dones = truncations.any(dim=1)
            infos |= {
                "final_observation": self._observation(),
                "final_info": dict(infos),
                "_final_observation": dones,
                "_final_info": dones,
            }
        rewards = torch.zeros(self.num_envs, chunk)
        terminations = torch.zeros_like(truncations)
        if self._lengths is not None:
            terminations[:, -1] = succeeded
        return [self._observation()], rewards, terminations, truncations, [infos]

    def _next_rollout(self) -> None:
        self._states[:, 1] += self._started
        self._states[:, 2] = 0
        self._started, self._steps = True, 0
        if self._lengths is not None:
            draws = (
                self._lengths.draw(int(env), int(rollout), horizon=self._decisions, seed=self._seed)
                for env, rollout in self._states[:, :2].tolist()
            )
            self._ends = torch.tensor(list(draws))

    def _shares(self) -> list[float]:
        """Return one over the length of each environment's episode; 0 after the end of the episode."""
        plays = self._states[:, 2] < self._ends
        return torch.where(plays, 1.0 / self._ends, 0.0).tolist()

    def _succeeded(self) -> torch.Tensor:
        if self._lengths is None:
            return torch.zeros(self.num_envs, dtype=torch.bool)
        return (self._ends < self._decisions) & (self._states[:, 2] >= self._ends)

    def _episode(self, succeeded: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "success_once": succeeded,
            "return": torch.zeros(self.num_envs),
            "episode_len": torch.full((self.num_envs,), float(self._steps)),
        }

    def _observation(self) -> dict[str, Any]:
        return {
            "states": self._states.clone(),
            "main_images": self._images,
            "task_descriptions": ["wait"] * self.num_envs,
        }
