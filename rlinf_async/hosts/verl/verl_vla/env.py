"""Environments of verl-vla for a shard: `env_class: verl_vla`, with verl-vla's `simulator_type`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from rlinf_async.hosts.kit.playing import StandingVectorEnv
from rlinf_async.hosts.verl.verl_vla.sections import SIMULATOR_CLASSES, worker_config

OBSERVATION_NAMES = {
    "observation.images.image": "main_images",
    "observation.images.wrist_image": "wrist_images",
    "observation.state": "states",
}
"""{verl-vla's name of an observation field: its name on every host}."""
STATE_ID_KEY = "info.reset_state_id"
"""The key with which a reset of verl-vla gets an initial state."""


class VerlVlaEnv:
    """`num_envs` simulators that verl-vla's class steps together.

    Members of a group start from the same initial state of the suite. With auto_reset, ended environments are
    reset here, one by one: verl-vla's own auto-reset drops the final observation of an episode, which is
    needed for its value.
    """

    ignore_terminations = False

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        del worker_info  # part of the signature
        section: Any = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)
        self.num_envs, self.is_start = num_envs, True
        self.auto_reset = bool(section["auto_reset"])
        self._is_eval = bool(section.get("is_eval"))
        self._group = int(section.get("group_size") or 1)
        self._rollouts = int(section.get("rollout_epoch") or 1)
        self._resets = 0
        self._all = np.arange(num_envs)
        module, _, name = SIMULATOR_CLASSES[section["simulator_type"]].partition(":")
        self._env = getattr(import_module(module), name)(
            OmegaConf.structured(worker_config(section, num_envs)),
            rank=seed_offset,
            world_size=total_num_processes,
            only_eval=self._is_eval,
        )
        self._length = torch.zeros(num_envs)
        self._return, self._terminated, self._truncated, self._succeeded = (
            torch.zeros(num_envs),
            *(torch.zeros(num_envs, dtype=torch.bool) for _ in range(3)),
        )

    def reset(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode in every environment; each evaluation begins with the first episodes of the
        suite.
        """
        first = self._resets == 0
        if self._is_eval:
            anew = self._resets % self._rollouts == 0
            observation, _ = self._env.reset(options={"mode": "eval", "reset_eval": anew})
        elif self._group == 1 or first:  # verl-vla's class needs one reset of all before resets of some
            observation, _ = self._env.reset()
        if not self._is_eval and self._group > 1:
            observation = self._reset_groups()
        self._resets += 1
        self._begin(self._all)
        return renamed_fields(observation), {}

    def update_reset_state_ids(self) -> None:
        """Do nothing: every reset draws initial states by itself."""

    def chunk_step(
        self, chunk_actions: Any
    ) -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Take the actions [num_envs, chunk, action_dim] one after the other.

        After the end of an episode inside the chunk the environment is stepped on, as in verl-vla: its later
        rewards are 0, and the flag of the end stays True.
        """
        given, rewards, terminations, truncations, successes = self._env.step(chunk_actions)
        rewards, successes = rewards.float(), successes.bool()
        ended = (self._terminated | self._truncated)[:, None]
        # [num_envs, 1 + chunk]: the first column is True for episodes that ended before this chunk.
        ends = torch.cat([ended, terminations.bool() | truncations.bool()], dim=1)
        over = ends.cummax(dim=1).values[:, :-1]  # before each step
        terminations, truncations = terminations.bool() & ~over, truncations.bool() & ~over
        self._return += (rewards * ~over).sum(dim=1)
        self._length += (~over).sum(dim=1)
        self._succeeded |= (successes & ~over).any(dim=1)
        terminations = self._terminated[:, None] | terminations.cummax(dim=1).values
        truncations = self._truncated[:, None] | (truncations & ~terminations).cummax(dim=1).values
        # Clones: `_begin` writes into them, and they are columns of the tensors that the caller gets.
        self._terminated, self._truncated = terminations[:, -1].clone(), truncations[:, -1].clone()
        observation = renamed_fields(given)
        info: dict[str, Any] = {"episode": self._episode()}
        done = np.flatnonzero(self._terminated | self._truncated)
        if self.auto_reset and len(done):
            info = {"final_observation": observation, "final_info": info}
            observation = _replaced(observation, done, renamed_fields(self._env.env_reset(env_ids=done)))
            self._begin(done)
        return [observation], rewards * ~over, terminations, truncations, [info]

    def let_play(self, numbers: Sequence[int] | None) -> None:
        """Step only the simulators at `numbers` from now on (None: all); the others repeat their last
        output.
        """
        StandingVectorEnv.within(self._env).let_play(numbers)

    def close(self) -> None:
        self._env.close()

    def _reset_groups(self) -> dict[str, Any]:
        """Draw an initial state for each group, and reset its members to it."""
        states = self._env.reset_planner.sample_train_states(self.num_envs // self._group)
        parts = [
            self._env.env_reset(env_ids=members, extra={STATE_ID_KEY: state[2:3]})
            for members, state in zip(self._all.reshape(-1, self._group), states, strict=True)
        ]
        return {name: [item for part in parts for item in part[name]] for name in parts[0]}

    def _begin(self, rows: np.ndarray) -> None:
        for record in (self._length, self._return, self._terminated, self._truncated, self._succeeded):
            record[torch.as_tensor(rows)] = 0

    def _episode(self) -> dict[str, torch.Tensor]:
        return {
            # Clones: `_begin` clears these tensors in place after an episode's end.
            "success_once": self._succeeded.clone(),
            "return": self._return.clone(),
            "episode_len": self._length.clone(),
            "reward": self._return / self._length.clamp(min=1),
        }


def renamed_fields(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl-vla's observation of some environments, as an array for each field."""
    each: Sequence[Mapping[str, Any]] = observation["observation"]
    fields: dict[str, Any] = {
        OBSERVATION_NAMES.get(name, name): _stacked([one[name] for one in each]) for name in each[0]
    }
    return {
        **fields,
        "task_descriptions": [str(task) for task in observation["task"]],
        "task_ids": np.asarray(observation["task_id"], dtype=np.int64),
    }


def _stacked(values: Sequence[Any]) -> np.ndarray:
    array = np.stack(values)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _replaced(observation: dict[str, Any], rows: np.ndarray, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `observation` with the items at `rows` from `fresh`, which has only those."""
    result = {name: value.copy() for name, value in observation.items()}
    for name, value in result.items():
        for number, row in enumerate(rows):
            value[row] = fresh[name][number]
    return result
