"""Advantages and returns of rollouts, by veRL's estimators or by this package's GAE.

veRL's estimators get a trajectory as a sequence of decisions, with one reward, value and mask entry per
decision. Estimators that compare trajectories of a group work piece by piece, as no group is spread over
pieces. Estimators that need the whole batch get it from all learner ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils.torch_functional import masked_whiten

from rlinf_async.core.objectives import gae, without_signal
from rlinf_async.core.tensors import Tensors
from rlinf_async.hosts.verl.algorithms import (
    COMPARING_ESTIMATORS,
    VALUE_ESTIMATORS,
    WHITENED_ESTIMATORS,
    streams,
)
from rlinf_async.hosts.verl.settings import VerlSettings


def valid_decisions(rollout: Tensors, settings: VerlSettings) -> torch.Tensor:
    """Return [T, B] bool: the decision belongs to an episode. Without auto_reset, decisions after its end do
    not.
    """
    # [T + 1, B]: row t is True if the episode ended before decision t; the last row is after all decisions.
    ended = rollout["ended"][:-1]
    return torch.ones_like(ended) if settings.auto_reset else ~ended


def estimate_pieces(
    rollout: Tensors, settings: VerlSettings, algorithm: AlgoConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages, not yet normalised over the batch, and returns, [T, B] each, for whole groups.

    Args:
        algorithm: veRL's `algorithm` section, which its estimators read.

    Raises:
        ValueError: the estimator needs the whole batch.
    """
    if settings.estimator in VALUE_ESTIMATORS:
        return _bootstrap(rollout, settings)
    if not streams(settings.estimator):
        raise ValueError(
            f"algorithm.adv_estimator={settings.estimator} needs the whole batch, which level 3 does not "
            "wait for; set async.advanced.normalization=deferred"
        )
    rewards, mask = _sequences(rollout, settings)
    return _by_verl(rewards, mask, settings, algorithm)


def estimate_batch(
    rollout: Tensors, settings: VerlSettings, algorithm: AlgoConfig, group: ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return final advantages, and returns, [T, B] each, for this rank's part of a complete batch.

    Args:
        group: the process group of the learner ranks; all must call this, with parts of equal size.
    """
    if settings.estimator in VALUE_ESTIMATORS and settings.auto_reset:
        # Only the whitening is veRL's: its GAE takes a sequence for one episode, and would cross a reset.
        advantages, returns = _bootstrap(rollout, settings)
        valid = valid_decisions(rollout, settings).float()
        everyone = masked_whiten(_everyone(advantages, group), _everyone(valid, group))
        return _own(everyone, advantages, group), returns
    # Joined along sequences: no group is spread over ranks, so its members stay adjacent for `index`.
    rewards, mask = (_everyone(tensor.T, group, dim=0) for tensor in _of_first_episode(rollout, settings))
    values = None
    if settings.estimator in VALUE_ESTIMATORS:
        values = _everyone(rollout["prev_values"][:-1].T, group, dim=0)
    advantages, returns = _by_verl(rewards, mask, settings, algorithm, values=values)
    own_rewards = rollout["rewards"]
    return _own(advantages, own_rewards, group), _own(returns, own_rewards, group)


def _by_verl(
    rewards: torch.Tensor,
    mask: torch.Tensor,
    settings: VerlSettings,
    algorithm: AlgoConfig,
    *,
    values: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results [T, B] of veRL's estimator on sequences [B, T]."""
    inputs: dict[str, Any] = {"token_level_rewards": rewards, "response_mask": mask}
    if settings.estimator in VALUE_ESTIMATORS:
        inputs |= {"values": values, "gamma": settings.gamma, "lam": settings.lam}
    else:
        inputs |= {"index": np.arange(len(rewards)) // settings.plan.group_size, "config": algorithm}
    if settings.estimator.startswith("grpo"):
        inputs["norm_adv_by_std_in_grpo"] = settings.norm_by_std
    advantages, returns = get_adv_estimator_fn(settings.estimator)(**inputs)
    if settings.estimator in COMPARING_ESTIMATORS:
        members = _without_signal(rewards, settings)[:, None]
        advantages, returns = (each.masked_fill(members, 0.0) for each in (advantages, returns))
    return advantages.T.contiguous(), returns.T.contiguous()


def _without_signal(rewards: torch.Tensor, settings: VerlSettings) -> torch.Tensor:
    """Return [B] bool: the sequence's group has equal scores, so that its advantages would be rounding
    errors.

    Such advantages may be as large as real ones, as the standard deviation is a rounding error, too.
    """
    silent = without_signal(rewards.sum(dim=1), settings.plan.group_size)
    if settings.estimator in WHITENED_ESTIMATORS:
        # After whitening, one silent group has the mean of all others as its advantage: no rounding error.
        silent = silent.all().expand_as(silent)
    return silent.repeat_interleave(settings.plan.group_size)


def silent_groups(rollout: Tensors, settings: VerlSettings) -> int:
    """Return the number of this rank's groups with equal scores of all members; 0 without groups."""
    if settings.plan.group_size < 2:
        return 0
    rewards, _ = _of_first_episode(rollout, settings)
    return int(without_signal(rewards.sum(dim=0), settings.plan.group_size).sum())


def _bootstrap(rollout: Tensors, settings: VerlSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GAE [T, B]. Without auto_reset the horizon ends an episode, as in veRL."""
    rewards, values, ended = rollout["rewards"], rollout["prev_values"], rollout["ended"]
    if not settings.auto_reset:
        ended = torch.cat([ended[:-1], torch.ones_like(ended[-1:])])
    return gae(rewards, values, ended, gamma=settings.gamma, lam=settings.lam)


def _of_first_episode(rollout: Tensors, settings: VerlSettings) -> tuple[torch.Tensor, torch.Tensor]:
    valid = valid_decisions(rollout, settings).to(rollout["rewards"].dtype)
    return rollout["rewards"] * valid, valid


def _sequences(rollout: Tensors, settings: VerlSettings) -> tuple[torch.Tensor, torch.Tensor]:
    rewards, mask = _of_first_episode(rollout, settings)
    return rewards.T.contiguous(), mask.T.contiguous()


def _everyone(tensor: torch.Tensor, group: ProcessGroup | None, *, dim: int = 1) -> torch.Tensor:
    """Return the parts of all ranks, joined; `tensor` if there is one rank."""
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return tensor.contiguous()
    # `all_gather` needs contiguous tensors of equal shape: every rank has an equal part of a batch.
    parts = [torch.empty_like(tensor.contiguous()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim=dim)


def _own(everyone: torch.Tensor, own: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    """Return this rank's columns of a tensor [T, B] of all ranks."""
    if everyone.shape == own.shape:
        return everyone
    # `_everyone` joins the parts in the order of the ranks.
    start = dist.get_rank(group) * own.shape[1]
    return everyone[:, start : start + own.shape[1]].contiguous()
