"""Rewards of the reward model in RLinf's reward workers: its inputs, and the use of its results.

RLinf's env worker waits for the reward of a step when it records the step. Here one of the reward workers
scores the environments of a shard right after their step, so that later code is the same as without a reward
model. Rewards equal those of RLinf's loop, as the model is frozen and scores every environment separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray
import torch

from rlinf_async.core.failures import DeadlineError
from rlinf_async.hosts.rlinf.compat import reward_method
from rlinf_async.hosts.rlinf.settings import HISTORY, PER_STEP, TERMINAL
from rlinf_async.hosts.rlinf.trajectory import EnvStep
from rlinf_async.ray_runtime.handles import Handle

ScoreInputs = Callable[[dict[str, Any]], Awaitable[Any]]
"""Scores the inputs from B environments: returns a tensor [B, 1] or [B, C], or None for no rewards."""


@dataclass(frozen=True, kw_only=True)
class RewardWorker:
    """One of RLinf's reward workers; a call scores inputs in the worker's process."""

    rank: int
    handle: Handle
    deadline_s: float

    async def __call__(self, shown: dict[str, Any]) -> Any:
        """
        Raises:
            DeadlineError: the answer is late.
            RuntimeError: the worker died, and the reward model with it.
        """
        call = reward_method(self.handle).remote(shown)
        try:
            async with asyncio.timeout(self.deadline_s):
                return await call
        except TimeoutError as error:
            raise DeadlineError(
                f"waited {self.deadline_s:g} s for the rewards of reward worker {self.rank}"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(
                f"reward worker {self.rank} has died, and no other takes its place: start the run again with "
                "runner.resume_dir"
            ) from error


class ShardRewards:
    """Adds the rewards of a reward model to the steps of the environments of one shard."""

    def __init__(self, section: Any, score: ScoreInputs, size: int) -> None:
        """
        Args:
            section: RLinf's section `reward`.
            score: the reward worker.
            size: the number of environments of the shard.
        """
        self._section, self._score, self._size = section, score, size
        self._mode = section.get("reward_mode", PER_STEP)
        self._weight = section.get("reward_weight", 1.0)
        self._own_weight = section.get("env_reward_weight", 0.0)
        self._spreads = self._mode == HISTORY and section.get("history_reward_assign", False)
        self.forget()

    def forget(self) -> None:
        """Drop the history of observations, as the environments were rebuilt."""
        self._history: Any = None
        if self._mode == HISTORY:
            from rlinf_async.hosts.rlinf.borrowed import HistoryManager  # only runs with this mode need it

            self._history = HistoryManager(self._section, self._size)

    async def add(self, step: EnvStep) -> None:
        """Mix the model's rewards into those of `step`, weighted as RLinf's config says.

        Raises:
            RuntimeError: the model returned rewards of another shape, or some that are not finite.
        """
        assert step.rewards is not None, "a step has rewards"
        assert step.dones is not None, "a step has ends"
        shown, lengths = self._model_inputs(step)
        # Without an end of an episode RLinf discards the scores, so that none are computed here.
        unused = self._mode == TERMINAL and not step.dones.any()
        answer = torch.zeros_like(step.rewards) if unused else await self._score(shown)
        if answer is None:
            return
        given = self._valid_rewards(answer, step.rewards)
        if self._mode == TERMINAL:
            given = at_first_end(given, step.dones)
        # Cast before weighting, as in RLinf's `compute_bootstrap_rewards`.
        rewards = given.to(step.rewards.dtype)
        step.model_rewards = given
        step.rewards = self._own_weight * step.rewards + self._weight * rewards
        if self._spreads:
            step.spread = (self._weight * rewards, lengths)
        if not step.dones[:, -1].any():
            step.final_obs = None  # its value is not needed

    def _model_inputs(self, step: EnvStep) -> tuple[dict[str, Any], list[int]]:
        """Return the inputs of the model, and the number of decisions in the history of each environment."""
        # As in RLinf's `get_reward_model_output`: final observations of episodes, and the ends of the last
        # step.
        last = step.final_obs if step.final_obs is not None else step.obs
        shown = {name: value for name, value in last.items() if value is not None}
        assert step.dones is not None
        shown["dones"] = ended = step.dones[:, -1]
        if step.infos is not None:
            shown["env_infos"] = step.infos
        if self._history is None:
            return shown, []
        self._history.append_to_history_entries(last)
        shown["history_input"], lengths = self._history.build_history_input(dones=ended)
        each = zip(*lengths.values(), strict=True)
        # The shortest of the buffers determines the number, as in RLinf's `assign_history_reward`.
        return shown, [min(of_buffers) for of_buffers in each]

    def _valid_rewards(self, given: Any, step_rewards: torch.Tensor) -> torch.Tensor:
        rewards = torch.as_tensor(given)
        shapes = ([self._size, 1], list(step_rewards.shape))
        if list(rewards.shape) not in shapes:
            raise RuntimeError(
                f"the reward model has given rewards {list(rewards.shape)} for {self._size} environments; "
                f"expected was {' or '.join(map(str, shapes))}"
            )
        if not bool(torch.isfinite(rewards).all()):
            raise RuntimeError("the reward model has given rewards that are not finite")
        return rewards


def at_first_end(given: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
    """Return rewards [B, C]: each environment's reward at its first end in the decision, and 0 elsewhere.

    Args:
        given: [B, 1], for the final observation of an episode.
        dones: [B, C] bool.
    """
    rewards = torch.zeros(dones.shape, dtype=given.dtype)
    ended = dones.any(dim=1)
    # argmax returns the first of equal values.
    steps = dones.to(torch.int64).argmax(dim=1)
    rewards[ended, steps[ended]] = given[ended, 0]
    return rewards
