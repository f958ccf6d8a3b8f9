"""The passes of an optimizer step over the samples that have a gradient, as their micro-batches come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import LiveSamples, Packing, Part, Pass
from rlinf_async.core.tensors import Tree, size_of

SKIPPED_METRIC = "async/skipped/samples"
"""The share of a batch's samples, over all ranks and epochs, that were not trained on."""


class LivePasses:
    """Takes micro-batches as they are cut, and gives the passes over their live samples."""

    def __init__(self, leaves: LeftOut, *, size: int, streams: bool, most: Callable[[int], int]) -> None:
        """
        Args:
            size: the most samples of a pass.
            streams: whether passes are made before a step is complete.
            most: the largest of a number over all ranks, all of which call it.
        """
        self.leaves, self.size, self._streams, self._most = leaves, size, streams, most
        self._samples = LiveSamples(Packing(size=size, mixes=leaves.mixes))
        self._trained = self._seen = 0

    def live(self, mask: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        """Return which of N samples are trained, [N] bool.

        Args:
            mask: [N, ...], false where the loss leaves an entry out; None where it leaves out none.
            advantages: [N, ...]; they broadcast against `mask`.
        """
        live = self.leaves.live(mask, advantages)
        return torch.ones(len(advantages), dtype=torch.bool) if live is None else live

    def add(self, samples: Tree, live: torch.Tensor) -> int:
        """Add a micro-batch, of whose samples, [N, ...], some are `live`; return its number in the step."""
        self.count(seen=len(live), trained=int(live.sum()))
        return self._samples.add(samples, live)

    def count(self, *, seen: int, trained: int) -> None:
        """Note samples, and those of them that are trained on."""
        self._seen += seen
        self._trained += trained

    @property
    def waiting(self) -> int:
        """Live samples that wait for their pass."""
        return self._samples.live

    def give(self, rows: int) -> list[tuple[Part, Tree]]:
        """Return the last `rows` live samples, which another rank computes; see `Packing.give`."""
        return self._samples.give(rows)

    def take_over(self, samples: Tree) -> int:
        """Add live samples that another rank counts; return the number of their micro-batch in the step."""
        return self._samples.add(samples, torch.ones(size_of(samples), dtype=torch.bool))

    def due(self, *, is_last: bool) -> Iterator[tuple[Pass, Tree, bool]]:
        """Yield the passes to make after a micro-batch, the last of its step or not: each with its samples,
        and whether it completes the step. An empty pass has one sample, which is to count nothing.
        """
        passes = self._passes(is_last)
        for number, (one, samples) in enumerate(self._samples.take(passes), start=1):
            yield one, samples, is_last and number == passes
        if is_last:
            self._samples.finish()

    def _passes(self, is_last: bool) -> int:
        if is_last:
            return self._most(self._samples.needed)
        # As many as every rank can fill.
        return -self._most(-self._samples.full) if self._streams else 0

    def pop_counts(self) -> dict[str, float]:
        """Samples since this was asked before: all, and those that were trained on."""
        counts = {"seen": float(self._seen), "trained": float(self._trained)}
        self._trained = self._seen = 0
        return counts


def skipped(counts: dict[str, float]) -> dict[str, float]:
    """Return the metric of `pop_counts`, added over all ranks."""
    return {SKIPPED_METRIC: 1 - counts["trained"] / counts["seen"]} if counts["seen"] else {}


def couples_rows(model: torch.nn.Module) -> bool:
    """Return True if a layer of `model`, in training mode, normalises by the rows that share a pass."""
    layers = (torch.nn.modules.batchnorm._BatchNorm,)
    return any(isinstance(module, layers) and module.training for module in model.modules())
