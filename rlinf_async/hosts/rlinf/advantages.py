"""Advantages and returns of a rollout, by RLinf's estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.objectives import without_signal
from rlinf_async.hosts.rlinf.borrowed import (
    calculate_adv_and_returns,
    get_adv_and_returns,
    register_advantage,
)

GRPO_TYPE = "grpo"


class GroupAdvantages:
    """RLinf's advantages of GRPO, but 0 for groups without signal, which it counts.

    RLinf divides what rounding has left of equal scores by its own deviation: seven scores of 0.7 have
    advantages of 0.06 there.
    """

    def __init__(self) -> None:
        own = get_adv_and_returns(GRPO_TYPE)
        self._base: Callable[..., Any] = own._base if isinstance(own, GroupAdvantages) else own
        self._silent = 0

    def register(self) -> GroupAdvantages:
        """Make this what RLinf finds under the name of GRPO, in this process."""
        register_advantage(GRPO_TYPE)(self)
        return self

    def __call__(self, **kwargs: Any) -> Any:
        """As RLinf's: `rewards` [groups, members] are the scores of trajectories; advantages [..., B]."""
        advantages, returns = self._base(**kwargs)
        silent = without_signal(kwargs["rewards"], kwargs["group_size"])
        self._silent += int(silent.sum())
        members = silent.repeat_interleave(kwargs["group_size"]).to(advantages.device)
        return advantages.masked_fill(members, 0.0), returns

    def pop_silent(self) -> int:
        """Groups without signal since this was asked before."""
        silent, self._silent = self._silent, 0
        return silent


def estimate(cfg: DictConfig, rollout: Mapping[str, Any], *, normalize: bool) -> dict[str, torch.Tensor]:
    """RLinf's advantages and returns, normalised over `rollout` or not; fields of [T, B, ...]."""
    algorithm = cfg.algorithm
    return calculate_adv_and_returns(
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
