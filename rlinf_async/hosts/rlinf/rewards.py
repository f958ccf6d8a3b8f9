"""Rewards of the reward model in RLinf's reward workers: its inputs, and the use of its results.

RLinf's env worker waits for the rewards of a step before the next step. The rewards here equal those of
RLinf's loop, as the model is frozen and scores every environment separately.

Theory of operation. No decision depends on a reward before its rollout is handed over. So with level 2 a
shard goes on at once, and a rollout waits for its rewards after its last decision, while the shard plays the
next one. An env worker has one call under way at each reward worker. Observations that come meanwhile, of any
of its shards and of several decisions, share the next call. A slow model thus gets larger batches, up to the
largest that RLinf's own loop would send. Histories are scored one call each, in their order: a model of RLinf
gets one history for each environment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch

from rlinf_async.core.failures import DeadlineError
from rlinf_async.hosts.observations import alike, merge
from rlinf_async.hosts.rlinf.compat import reward_method
from rlinf_async.hosts.rlinf.run_settings import HISTORY, PER_STEP, TERMINAL
from rlinf_async.hosts.rlinf.trajectory import EnvStep, ModelRewards
from rlinf_async.loops.requests import settle
from rlinf_async.ray_runtime.handles import Handle

ScoreInputs = Callable[[dict[str, Any]], Awaitable[Any]]
"""Scores the inputs from B environments: returns a tensor [B, 1] or [B, C], or None for no rewards."""

HISTORY_INPUT = "history_input"
"""RLinf's name for the histories of observations among the inputs of a reward model."""


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


class RewardQueue:
    """The observations of an env worker that wait for one reward worker; one call is under way at a time."""

    def __init__(self, score: ScoreInputs, *, most_environments: int) -> None:
        """`most_environments`: the largest batch of a call that scores several inputs."""
        self._score, self._most_environments = score, most_environments
        self._waiting: deque[tuple[dict[str, Any], asyncio.Future[Any]]] = deque()
        self._calls: asyncio.Task[None] | None = None

    def put(self, shown: dict[str, Any]) -> asyncio.Future[Any]:
        """Return the future scores of inputs: [B, 1] or [B, C], or None for no rewards."""
        scores: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((shown, scores))
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._call())
        return scores

    async def _call(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            inputs = [shown for shown, _ in batch]
            try:
                parts: Sequence[Any]
                if len(inputs) == 1:
                    parts = [await self._score(inputs[0])]
                else:
                    parts = split(await self._score(merge(inputs)), list(map(_environments, inputs)))
            # Any error: it is raised in the rollouts that wait for these scores.
            except Exception as error:  # noqa: BLE001
                for _, scores in batch:
                    settle(scores, None, error)
                    if not scores.cancelled():
                        scores.exception()  # a rollout that was given up leaves it unread
                continue
            for (_, scores), part in zip(batch, parts, strict=True):
                settle(scores, part, None)

    def _next_batch(self) -> list[tuple[dict[str, Any], asyncio.Future[Any]]]:
        """Take the first inputs, and those behind them that may share their call."""
        batch = [self._waiting.popleft()]
        first = batch[0][0]
        size = _environments(first)
        while self._waiting and may_be_joined(first):
            shown = self._waiting[0][0]
            size += _environments(shown)
            fits = size <= self._most_environments and may_be_joined(shown)
            if not fits or len(alike([first, shown])) > 1:
                break
            batch.append(self._waiting.popleft())
        return batch


def _environments(shown: dict[str, Any]) -> int:
    return len(shown["dones"])


def may_be_joined(shown: dict[str, Any]) -> bool:
    """Return True if all inputs have an item for each environment, and none is a history."""
    return HISTORY_INPUT not in shown and _has_items(shown, _environments(shown))


def _has_items(value: Any, size: int) -> bool:
    if isinstance(value, dict):
        return all(_has_items(item, size) for item in value.values())
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and len(value) == size
    return isinstance(value, list) and len(value) == size


def split(answer: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """Split the scores of joined inputs.

    Raises:
        RuntimeError: there is not one row of scores for each environment.
    """
    if answer is None:
        return [None] * len(sizes)
    scores = torch.as_tensor(answer)
    size = sum(sizes)
    if scores.ndim != 2 or len(scores) != size:
        shapes = f"[{size}, 1] or [{size}, steps of a decision]"
        raise RuntimeError(
            f"the reward model has given rewards {list(scores.shape)} for {size} environments; "
            f"expected was {shapes}"
        )
    return scores.split(list(sizes))


class ShardRewards:
    """Adds the rewards of a reward model to the steps of the environments of one shard."""

    def __init__(self, section: Any, queue: RewardQueue, size: int) -> None:
        """
        Args:
            section: RLinf's section `reward`.
            queue: of the reward worker that scores the shard.
            size: the number of environments of the shard.
        """
        self._section, self._queue, self._size = section, queue, size
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

    def begin(self, step: EnvStep) -> None:
        """Have `step` scored; `EnvStep.scored` mixes the rewards, weighted as RLinf's config says, and raises
        a RuntimeError if the model returned rewards of another shape, or some that are not finite.
        """
        assert step.rewards is not None, "a step has rewards"
        assert step.dones is not None, "a step has ends"
        shown, lengths = self._model_inputs(step)
        # Without an end of an episode RLinf discards the scores, so that none are computed here.
        unused = self._mode == TERMINAL and not step.dones.any()
        answer = None if unused else self._queue.put(shown)
        step.scores = partial(self._mixed, answer, rewards=step.rewards, dones=step.dones, lengths=lengths)
        if not step.dones[:, -1].any():
            step.final_obs = None  # its value is not needed

    async def _mixed(
        self,
        answer: Awaitable[Any] | None,
        *,
        rewards: torch.Tensor,
        dones: torch.Tensor,
        lengths: list[int],
    ) -> ModelRewards | None:
        scores = torch.zeros_like(rewards) if answer is None else await answer
        if scores is None:
            return None
        given = self._valid_rewards(scores, rewards)
        if self._mode == TERMINAL:
            given = at_first_end(given, dones)
        # Cast before weighting, as in RLinf's `compute_bootstrap_rewards`.
        weighted = self._weight * given.to(rewards.dtype)
        spread = (weighted, lengths) if self._spreads else None
        return ModelRewards(mixed=self._own_weight * rewards + weighted, model=given, spread=spread)

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
        shown[HISTORY_INPUT], lengths = self._history.build_history_input(dones=ended)
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
