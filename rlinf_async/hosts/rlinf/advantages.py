"""Advantages and returns of a rollout, by RLinf's estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.algorithms.registry import calculate_adv_and_returns


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
