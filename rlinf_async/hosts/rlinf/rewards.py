"""Rewards by a reward model that RLinf's reward workers hold: what they are shown, and what becomes of it.

RLinf's env worker waits for the reward of a step when it records the step. Here the environments of a shard
are scored as soon as they have stepped, by one of the workers, so that everything after that is as without a
reward model. Rewards are those of RLinf's loop: the model is frozen, and scores every environment by itself.
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

Ask = Callable[[dict[str, Any]], Awaitable[Any]]
"""Scores what B environments have shown: a tensor [B, 1] or [B, C], or None for no reward at all."""


@dataclass(frozen=True, kw_only=True)
class RewardWorker:
    """One of RLinf's reward workers; calling it scores, in a process of its own."""

    rank: int
    handle: Handle
    deadline_s: float

    async def __call__(self, shown: dict[str, Any]) -> Any:
        """
        Raises:
            DeadlineError: there is no answer in time.
            RuntimeError: the worker has died, and with it the reward model.
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

    def __init__(self, section: Any, ask: Ask, size: int) -> None:
        """
        Args:
            section: RLinf's `reward`.
            size: environments of the shard.
        """
        self._section, self._ask, self._size = section, ask, size
        self._mode = section.get("reward_mode", PER_STEP)
        self._weight = section.get("reward_weight", 1.0)
        self._own_weight = section.get("env_reward_weight", 0.0)
        self._spreads = self._mode == HISTORY and section.get("history_reward_assign", False)
        self.forget()

    def forget(self) -> None:
        """Others take the place of these environments: what was seen of them is no history of theirs."""
        self._history: Any = None
        if self._mode == HISTORY:
            from rlinf_async.hosts.rlinf.borrowed import HistoryManager  # of runs that have one

            self._history = HistoryManager(self._section, self._size)

    async def add(self, step: EnvStep) -> None:
        """Mix the model's rewards into those of `step`, weighted as RLinf's config says.

        Raises:
            RuntimeError: the model has given rewards of another shape, or such that are not finite.
        """
        assert step.rewards is not None, "a step has rewards"
        assert step.dones is not None, "a step has ends"
        shown, lengths = self._model_inputs(step)
        # RLinf's model scores where nothing has ended, too, and that is not looked at.
        in_vain = self._mode == TERMINAL and not step.dones.any()
        answer = torch.zeros_like(step.rewards) if in_vain else await self._ask(shown)
        if answer is None:
            return
        given = self._valid_rewards(answer, step.rewards)
        if self._mode == TERMINAL:
            given = at_first_end(given, step.dones)
        # Cast before it is weighed, as in RLinf's `compute_bootstrap_rewards`.
        rewards = given.to(step.rewards.dtype)
        step.model_rewards = given
        step.rewards = self._own_weight * step.rewards + self._weight * rewards
        if self._spreads:
            step.spread = (self._weight * rewards, lengths)
        if not step.dones[:, -1].any():
            step.final_obs = None  # whose value nobody needs

    def _model_inputs(self, step: EnvStep) -> tuple[dict[str, Any], list[int]]:
        """Return the inputs of the model, and the number of decisions in the history of each environment."""
        # As RLinf's `get_reward_model_output`: last observations of episodes, and the ends of the last step.
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
        # The shortest of the buffers counts, as in RLinf's `assign_history_reward`.
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
    """Rewards [B, C] of episodes at the step where the first of each environment ends, and 0 elsewhere.

    Args:
        given: [B, 1], of the last observation of an episode.
        dones: [B, C] bool.
    """
    rewards = torch.zeros(dones.shape, dtype=given.dtype)
    ended = dones.any(dim=1)
    # Of equal values argmax gives the first.
    steps = dones.to(torch.int64).argmax(dim=1)
    rewards[ended, steps[ended]] = given[ended, 0]
    return rewards
