"""RLinf's advantages of a rollout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.objectives import without_signal
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.losses import GRPO_TYPE

# A context variable: while the learner counts, another thread computes advantages of pieces to be scored.
_COUNTS_SILENT: ContextVar[bool] = ContextVar("counts_silent", default=True)


class GroupAdvantages:
    """RLinf's GRPO advantages, but 0 for groups without signal, which are counted.

    For equal scores RLinf divides rounding errors by their own standard deviation: seven scores of 0.7 get
    advantages of 0.06 there.
    """

    def __init__(self) -> None:
        own = borrowed.get_adv_and_returns(GRPO_TYPE)
        # RLinf stores a wrapper of the registered function.
        registered = inspect.unwrap(own)
        self._base: Callable[..., Any] = registered._base if isinstance(registered, GroupAdvantages) else own
        self._silent = 0

    def register(self) -> GroupAdvantages:
        """Register this object with RLinf as GRPO's advantages, in this process."""
        borrowed.register_advantage(GRPO_TYPE)(self)
        return self

    def __call__(self, **kwargs: Any) -> Any:
        """Return advantages [..., B] and returns, as RLinf's function; `rewards` [groups, members] are
        trajectories' scores.
        """
        advantages, returns = self._base(**kwargs)
        # [groups, members]: RLinf's `calculate_scores` has summed the rewards of each trajectory.
        silent = without_signal(kwargs["rewards"], kwargs["group_size"])
        self._silent += int(silent.sum()) if _COUNTS_SILENT.get() else 0
        members = silent.repeat_interleave(kwargs["group_size"]).to(advantages.device)
        return advantages.masked_fill(members, 0.0), returns

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count groups inside the block, as the same advantages will be computed again."""
        token = _COUNTS_SILENT.set(False)
        try:
            yield
        finally:
            _COUNTS_SILENT.reset(token)

    def pop_silent(self) -> int:
        """Return the number of groups without signal since the last call."""
        silent, self._silent = self._silent, 0
        return silent


def estimate(cfg: DictConfig, rollout: Mapping[str, Any], *, normalize: bool) -> dict[str, torch.Tensor]:
    """Return RLinf's advantages and returns, with or without normalisation over `rollout` (fields [T, B,
    ...]).
    """
    algorithm = cfg.algorithm
    # The arguments and defaults of RLinf's `compute_advantages_and_returns`; its main branch has further ones
    # for other algorithms. RLinf does not pass `normalize_advantages`.
    return borrowed.calculate_adv_and_returns(
        task_type=cfg.runner.task_type,
        adv_type=algorithm.adv_type,
        rewards=rollout["rewards"],
        dones=rollout["dones"],
        values=rollout.get("prev_values"),
        gamma=algorithm.get("gamma", 1),
        gae_lambda=algorithm.get("gae_lambda", 1),
        group_size=algorithm.get("group_size", 8),
        reward_type=algorithm.reward_type,
        loss_mask=rollout.get("loss_mask"),
        loss_mask_sum=rollout.get("loss_mask_sum"),
        normalize_advantages=normalize,
    )


def explained_variance(
    metrics: dict[str, list[Any]], reduce: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, float]:
    """Return the critic's explained variance over a batch, for RLinf versions with losses that report sums
    for it.

    The sums are removed from `metrics`, and `reduce` adds them over the ranks. Losses of RLinf 0.3 report the
    variance of each micro-batch instead, which is averaged like other metrics: then the result is empty.
    """
    if not borrowed.is_here("pop_critic_explained_variance_stats"):
        return {}
    sums = borrowed.pop_critic_explained_variance_stats(metrics)
    if not sums:
        return {}
    variance = borrowed.compute_critic_explained_variance_from_stats(reduce(sums))
    return {borrowed.CRITIC_EXPLAINED_VARIANCE_KEY: float(variance)}
