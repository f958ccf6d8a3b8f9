"""Measure the imbalance of live rows over learner ranks, which exchanging rows within a step removes.

    python -m benchmarks.dead_work.balance

The command counts rows, and trains nothing. The batches are those of `benchmarks.dead_work.learner`: GRPO
with half of the groups silent by chance, on eight ranks, and PPO with episodes that end after 40 % of the
horizon, on two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

ENVS, HORIZON, GROUP = 256, 20, 8
STEP_ROWS = 2560
"""Rows of an optimizer step on all ranks of PPO, and on each rank of GRPO."""
SEEDS = 3


def counts(live: torch.Tensor, draw: torch.Generator, size: int) -> list[int]:
    """Live rows of each optimizer step of `size` rows, of `live` [T, B] in a random order."""
    rows = live.flatten()
    return [int(step.sum()) for step in rows[torch.randperm(len(rows), generator=draw)].split(size)]


def grpo(seed: int, *, ranks: int = 8) -> Iterator[list[int]]:
    """The counts of each rank."""
    for rank in range(ranks):
        draw = torch.Generator().manual_seed(100 + rank + 1000 * seed)
        live = torch.rand(ENVS // GROUP, generator=draw) >= 0.5
        yield counts(live.repeat_interleave(GROUP).expand(HORIZON, -1), draw, STEP_ROWS)


def ppo(seed: int, *, ranks: int = 2) -> Iterator[list[int]]:
    """The counts of each rank."""
    draw = torch.Generator().manual_seed(3 + seed)
    lengths = torch.randint(1, 16, (ENVS,), generator=draw)
    for own in lengths.split(ENVS // ranks):
        yield counts(torch.arange(HORIZON)[:, None] < own, draw, STEP_ROWS // ranks)


def uneven(ranks: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The fullest rank's rows over the mean, and the share of live rows that would move to even out the
    ranks: means over the optimizer steps.
    """
    steps = list(zip(*ranks, strict=True))
    fullest = fmean(max(step) / fmean(step) for step in steps)
    return fullest, fmean(sum(max(0.0, rows - fmean(step)) for rows in step) / sum(step) for step in steps)


def main() -> None:
    """Print a line for each case and seed."""
    for name, make in (("grpo, 8 ranks", grpo), ("ppo, 2 ranks", ppo)):
        for seed in range(SEEDS):
            fullest, moved = uneven(list(make(seed)))
            sys.stdout.write(f"{name}: fullest over mean {fullest:.2f}, rows to move {moved:.1%}\n")


if __name__ == "__main__":
    main()
