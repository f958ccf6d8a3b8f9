"""Statistics of episodes, over all of those that a batch was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

MODEL_REWARDS = "reward_model_output"
"""The statistic of rollouts with an item for every reward of a reward model, and not for every episode."""


def mean_of_episodes(results: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """The mean of each statistic over the episodes of all workers, and how many there were.

    Each of `results` has the episodes of one worker in the first dimension; where there are none at all,
    nothing is said. These are RLinf's numbers.
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
