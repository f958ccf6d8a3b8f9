"""Metrics of the rollouts of a batch, from their decisions and from the statistics of their episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from rlinf_async.core.tensors import MODEL_REWARDS, Tensors

REPORTED_FIELDS = ("rewards", "advantages", "returns", "valid")
"""Fields of a rollout that these metrics need."""
Reduce = Callable[[dict[str, float]], dict[str, float]]
"""Reduces the values of this learner rank over all ranks; every rank must pass the same names."""


def _alone(values: dict[str, float]) -> dict[str, float]:
    return values


def of_rollouts(
    rollouts: Sequence[Tensors], *, summed: Reduce = _alone, largest: Reduce = _alone
) -> dict[str, float]:
    """Return means, and extremes of advantages and returns, over the valid decisions of a batch and all
    ranks.

    Args:
        rollouts: `rewards`, `advantages`, `returns` and the mask `valid`, [T, B] each.
    """
    valid = torch.cat([rollout["valid"].flatten() for rollout in rollouts])
    sums: dict[str, float] = {"count": float(valid.sum())}
    most: dict[str, float] = {}
    for name in ("rewards", "advantages", "returns"):
        values = torch.cat([rollout[name].flatten().float() for rollout in rollouts])[valid]
        sums[name] = float(values.double().sum())
        # A rank without valid values would pass no extremes, and the reduction of the other ranks would hang;
        # it cannot happen, as every rollout has a valid first decision.
        if name != "rewards" and len(values):
            # Minima as maxima of negatives: one reduction serves both.
            most |= {f"{name}_max": float(values.max()), f"{name}_min": -float(values.min())}
    sums, most = summed(sums), largest(most)
    count = max(1.0, sums.pop("count"))
    means = {name if name == "rewards" else f"{name}_mean": total / count for name, total in sums.items()}
    return means | {name: -value if name.endswith("_min") else value for name, value in most.items()}


def mean_of_episodes(results: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """Return the mean of each statistic over the episodes of all workers, and their number.

    Each of `results` has the statistics of one worker, with its episodes in the first dimension. Without any
    episodes the result is empty. The numbers are the same as RLinf's.
    """
    nonempty = [result for result in results if result]
    names = dict.fromkeys(name for result in nonempty for name in result)
    means = {}
    for name in names:
        episodes = torch.cat([result[name].reshape(-1).float() for result in nonempty if name in result])
        means[name] = float(episodes.mean()) if episodes.numel() else 0.0
    if nonempty:
        means["num_trajectories"] = float(sum(map(_episodes, nonempty)))
    return means


def _episodes(result: Mapping[str, torch.Tensor]) -> int:
    return max((len(values) for name, values in result.items() if name != MODEL_REWARDS), default=0)
