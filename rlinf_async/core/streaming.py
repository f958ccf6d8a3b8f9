"""Level 3: cutting a stream of samples into micro-batches and optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from rlinf_async.core.tensors import Tree, concatenate, size_of, slice_samples


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`micro_batch_size` samples; `steps` marks the last one before an optimizer step."""

    samples: Tree
    steps: bool


class MicroBatchStream:
    """Cuts samples into micro-batches, in the order of their arrival.

    Cuts depend on counts alone, never on arrival times: learner ranks with equally many samples make
    equally many forward passes and optimizer steps, as sharded models require.
    """

    def __init__(self, *, micro_batch_size: int, micro_batches_per_step: int) -> None:
        if micro_batch_size < 1 or micro_batches_per_step < 1:
            raise ValueError(
                f"micro_batch_size={micro_batch_size} and micro_batches_per_step={micro_batches_per_step} "
                "must be at least 1"
            )
        self.micro_batch_size = micro_batch_size
        self.micro_batches_per_step = micro_batches_per_step
        self._remainder: Tree | None = None
        self._cut = 0

    @property
    def pending(self) -> int:
        """Samples that wait for the rest of their micro-batch."""
        return size_of(self._remainder) if self._remainder is not None else 0

    def add(self, samples: Tree) -> Iterator[MicroBatch]:
        """Yield every micro-batch that `samples` complete."""
        # A generator: a caller that leaves the loop early loses the samples that are not yet cut.
        total, start = size_of(samples), 0
        if self._remainder is not None:
            # One micro-batch is copied, and no more: samples hold observations.
            start = min(self.micro_batch_size - self.pending, total)
            filled = concatenate([self._remainder, slice_samples(samples, 0, start)])
            self._remainder = None
            if size_of(filled) < self.micro_batch_size:
                self._remainder = filled
                return
            yield self._cut_off(filled)
        while total - start >= self.micro_batch_size:
            stop = start + self.micro_batch_size
            yield self._cut_off(slice_samples(samples, start, stop))
            start = stop
        if start < total:
            self._remainder = slice_samples(samples, start, total)

    def _cut_off(self, samples: Tree) -> MicroBatch:
        self._cut += 1
        return MicroBatch(samples, steps=self._cut % self.micro_batches_per_step == 0)

    def finish(self) -> None:
        """The batch is complete.

        Raises:
            ValueError: samples are left that fill no micro-batch, or micro-batches that fill no step.
        """
        if self.pending or self._cut % self.micro_batches_per_step:
            raise ValueError(
                f"a batch left {self.pending} samples and {self._cut % self.micro_batches_per_step} "
                f"micro-batches over: it must be a multiple of micro_batch_size={self.micro_batch_size} x "
                f"{self.micro_batches_per_step} micro-batches per optimizer step"
            )
        self._cut = 0


def shares(before: int, after: int, parts: int) -> list[int]:
    """Return how many of the samples `before` to `after` of a batch go to each of `parts` equal parts.

    Depends on counts alone, as the cuts of `MicroBatchStream` do. If `parts` divides the size of the batch,
    every part gets equally many samples of it.
    """
    # Part k has floor((n + k) / parts) of the first n samples, and these add up to n (Hermite's identity).
    # The first part, k = 0, is never ahead of another: it is full with the last sample and not before.
    return [(after + part) // parts - (before + part) // parts for part in range(parts)]


SumOverRanks = Callable[[dict[str, float]], dict[str, float]]
"""Adds each named sum over learner ranks."""
MAX_SPREAD_RATIO = 2.0
"""Upper bound of (root mean square of a batch's advantages about the mean of the batch before) / divisor."""


@dataclass
class AdvantageScale:
    """Mean and deviation of the advantages of the last complete batch.

    Exact normalisation needs the whole batch. So samples that are trained before their batch is complete
    (`close`) are normalised with the statistics of the batch before; `explain` reports this approximation.
    Until a first batch is complete, `ready` is False and the caller holds its samples back.

    The batch before may have had no spread, where every episode failed as the critic predicted. Division by
    its deviation would multiply the advantages of the next batch, with the first successes, by up to 1e5. So
    the divisor is at least `1 / MAX_SPREAD_RATIO` of the root mean square, about the mean of the batch
    before, of the advantages observed so far in the present batch.
    """

    # With SPREAD for MAX_SPREAD_RATIO,
    # let S_k be the sum of the squares about the mean over the n_k samples observed up to piece k, and D_k
    # the divisor of that piece: SPREAD^2 n_k D_k^2 >= S_k. So no sample becomes larger than SPREAD sqrt(n_k);
    # normalised by itself, a batch of n has samples of up to sqrt(n - 1). The squares of piece k add up to
    # (S_k - S_k-1) / D_k^2 <= SPREAD^2 n_k (1 - S_k-1 / S_k), so that the mean square of a batch of K pieces
    # is at most SPREAD^2 min(K, 1 + log(S_K / S_1)), and SPREAD^2 where pieces are alike; its own
    # normalisation gives 1. Where the spread at most doubles from batch to batch, the floor does nothing.

    mean: float = 0.0
    std: float = 1.0
    ready: bool = False
    _advantages: list[torch.Tensor] = field(default_factory=list)
    _count: int = 0
    _squares: float = 0.0

    def observe(self, advantages: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Collect the raw advantages of one piece (any shape; `mask` broadcasts to it), before `apply`."""
        valid = advantages if mask is None else advantages[mask.expand_as(advantages).bool()]
        # Kept until the batch is complete, as the exact deviation needs the mean of all first.
        self._advantages.append(valid.detach().flatten().float())
        self._count += valid.numel()
        self._squares += float((valid.detach().double() - self.mean).square().sum())

    @property
    def divisor(self) -> float:
        """The divisor of the advantages observed last."""
        # `_squares` are about the mean of the batch before, so that a shift of the mean counts as spread.
        own = math.sqrt(self._squares / self._count) if self._count else 0.0
        return max(self.std, own / MAX_SPREAD_RATIO)

    def apply(self, advantages: torch.Tensor) -> torch.Tensor:
        return (advantages - self.mean) / (self.divisor + 1e-5)

    def close(self, sum_over_ranks: SumOverRanks = dict) -> None:
        """The batch is complete: its statistics normalise the rest of it, and the beginning of the next one.

        `sum_over_ranks` adds sums over the learner ranks that normalise together; by default there is one.
        """
        # In 64 bits: sums over a whole batch would lose digits in 32.
        values = (
            torch.cat(self._advantages).double() if self._advantages else torch.empty(0, dtype=torch.double)
        )
        self._advantages.clear()
        self._count, self._squares = 0, 0.0
        sums = sum_over_ranks({"count": float(values.numel()), "total": float(values.sum())})
        # The count over all ranks: either every rank calls `sum_over_ranks` again, or none does.
        if sums["count"] > 1:
            self.mean, self.ready = sums["total"] / sums["count"], True
            squares = sum_over_ranks({"squares": float((values - self.mean).square().sum())})["squares"]
            # Over n - 1, as in torch.std and in the frameworks.
            self.std = math.sqrt(squares / (sums["count"] - 1))
