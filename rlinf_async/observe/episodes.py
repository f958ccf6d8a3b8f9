"""Statistics of the episodes of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rlinf_async.core.tensors import MODEL_REWARDS


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
