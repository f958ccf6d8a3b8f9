"""Advantages and returns of a rollout, by RLinf's estimators or by V-trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.algorithms.registry import calculate_adv_and_returns
from rlinf.algorithms.utils import (
    postprocess_embodied_advantages_outputs,
    preprocess_embodied_advantages_inputs,
    safe_normalize,
)

from rlinf_async.core.objectives import importance_weight, vtrace
from rlinf_async.hosts.rlinf.losses import at_ratio_level


def estimate(cfg: DictConfig, rollout: Mapping[str, Any], *, normalize: bool) -> dict[str, torch.Tensor]:
    """RLinf's advantages and returns, normalised over `rollout` or not; fields of [T, B, ...]."""
    return calculate_adv_and_returns(**_inputs(cfg, rollout), normalize_advantages=normalize)


def estimate_vtrace(
    cfg: DictConfig, rollout: Mapping[str, Any], *, max_weight: float, normalize: bool
) -> dict[str, torch.Tensor]:
    """The same by V-trace, from the `proximal_logprobs` of `rollout`."""
    inputs = preprocess_embodied_advantages_inputs(**_inputs(cfg, rollout))
    advantages, returns = vtrace(
        inputs["rewards"],
        inputs["values"],
        inputs["dones"].bool(),
        _ratios(cfg, rollout, like=inputs["rewards"]),
        gamma=inputs["gamma"],
        lam=inputs["gae_lambda"],
        max_weight=max_weight,
    )
    if normalize:
        advantages = safe_normalize(advantages, loss_mask=inputs["loss_mask"])
    return postprocess_embodied_advantages_outputs(**{**inputs, "advantages": advantages, "returns": returns})


def _inputs(cfg: DictConfig, rollout: Mapping[str, Any]) -> dict[str, Any]:
    """What RLinf's actor passes to its estimators."""
    algorithm = cfg.algorithm
    return {
        "task_type": cfg.runner.task_type,
        "adv_type": algorithm.adv_type,
        "rewards": rollout["rewards"],
        "dones": rollout["dones"],
        "values": rollout.get("prev_values"),
        "gamma": algorithm.get("gamma", 1),
        "gae_lambda": algorithm.get("gae_lambda", 1),
        "group_size": algorithm.get("group_size", 8),
        "reward_type": algorithm.reward_type,
        "loss_mask": rollout.get("loss_mask"),
        "loss_mask_sum": rollout.get("loss_mask_sum"),
    }


def _ratios(cfg: DictConfig, rollout: Mapping[str, Any], *, like: torch.Tensor) -> torch.Tensor:
    """`pi_prox / mu` of each rewarded step, in the shape [steps, B] of `like`."""
    level = "chunk_level" if cfg.algorithm.reward_type == "chunk_level" else "action_level"
    steps, width = rollout["prev_logprobs"].shape[:2]

    def summed(name: str) -> torch.Tensor:
        flat = rollout[name].float().reshape(steps * width, -1)
        return at_ratio_level(flat, level, cfg.actor.model.get("action_dim", 7)).reshape(steps, width, -1)

    behaviour = summed("acted_logprobs" if "acted_logprobs" in rollout else "prev_logprobs")
    ratios = importance_weight(
        summed("proximal_logprobs"), behaviour, correction="decoupled", max_weight=torch.inf
    )
    return ratios.transpose(1, 2).reshape(like.shape)
