"""Metrics of a batch: means over its micro-batches and optimizer steps, over all learner ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric

HIDDEN_PREFIXES = ("perf/",)
"""Prefixes of veRL's metrics that do not describe training."""


class StepMeasures:
    """Collects the metrics of a batch's optimizer steps.

    Within a step, metrics that veRL sums over micro-batches (losses, which are parts of a mean) are summed,
    and all others averaged. Over steps, all are averaged with equal weights.
    """

    def __init__(self) -> None:
        self._steps: dict[str, list[float]] = defaultdict(list)
        self._parts: dict[str, list[float]] = defaultdict(list)
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, metrics: Mapping[str, Any], losses: Sequence[float], *, counts: bool = True) -> None:
        """Add the result of `forward_backward_batch` for one pass; `counts=False` leaves it out of means."""
        self._sums["loss"] += sum(losses)
        for name, value in metrics.items():
            if isinstance(value, Metric) and value.aggregation is AggregationType.SUM:
                self._sums[name] += float(value.aggregate())
            else:
                # Every rank needs the same names, also without live samples.
                self._parts[name] += [_mean(value)] if counts else []

    def step(self, *, divisor: float, grad_norm: float) -> None:
        """Close an optimizer step: divide sums of losses by `divisor`, and begin the next step."""
        for name, total in self._sums.items():
            self._steps[name].append(total / max(1.0, divisor))
        for name, parts in self._parts.items():
            self._steps[name].append(_mean(parts) if parts else 0.0)
        self._steps["actor/grad_norm"].append(grad_norm)
        self._sums.clear()
        self._parts.clear()

    def note(self, name: str, value: float) -> None:
        self._steps[name].append(float(value))

    def means(self, group: ProcessGroup | None = None) -> dict[str, float]:
        """Return means over the steps of all ranks; every rank must have the same names."""
        # Values are added by position, so all ranks need the same order.
        names = sorted(self._steps)
        means = {name: _mean(self._steps[name]) for name in names}
        ranks = float(dist.get_world_size(group))
        return {name: total / ranks for name, total in sum_over_ranks(means, group).items()}


def of_verl(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the same means from the result of veRL's `train_mini_batch`, which is reduced over ranks
    already.
    """
    names = {"grad_norm": "actor/grad_norm", "lr": "actor/lr"}
    return {
        names.get(name, name): _mean(value)
        for name, value in metrics.items()
        if not name.startswith(HIDDEN_PREFIXES)
    }


def sum_over_ranks(
    sums: Mapping[str, float], group: ProcessGroup | None = None, op: object = dist.ReduceOp.SUM
) -> dict[str, float]:
    """Return each value summed over all learner ranks, which must have the same names in the same order."""
    if not sums or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return dict(sums)
    values = torch.tensor(list(sums.values()), dtype=torch.float64, device=get_device_id())
    dist.all_reduce(values, op=op, group=group)
    return dict(zip(sums, values.tolist(), strict=True))


def _mean(value: object) -> float:
    if isinstance(value, Metric):
        return float(value.aggregate())
    parts = value if isinstance(value, Sequence) else [value]
    return float(
        np.mean([float(_mean(part)) if isinstance(part, Metric | Sequence) else part for part in parts])
    )
