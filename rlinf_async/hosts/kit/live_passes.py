"""The passes of an optimizer step over its live samples, those with a gradient, as micro-batches arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import LiveSamples, Packing, Part, Pass
from rlinf_async.core.tensors import Tree, size_of

SKIPPED_METRIC = "async/skipped/samples"
"""The share of a batch's samples, over all ranks and epochs, that were in no pass."""


class LivePasses:
    """Collects the live samples of micro-batches, and yields passes over them."""

    def __init__(self, leaves: LeftOut, *, size: int, streams: bool, most: Callable[[int], int]) -> None:
        """
        Args:
            size: the most samples of a pass.
            streams: True if passes are made before the micro-batches of a step are complete.
            most: returns the largest of a number over all ranks; a collective call.
        """
        self.leaves, self.size, self._streams, self._most = leaves, size, streams, most
        self._samples = LiveSamples(Packing(size=size, mixes=leaves.mixes))
        self._trained = self._seen = 0

    def live(self, mask: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        """Return which of N samples are trained, [N] bool.

        Args:
            mask: [N, ...], False for entries that the loss leaves out; None if it leaves out none.
            advantages: [N, ...]; they broadcast against `mask`.
        """
        live = self.leaves.live(mask, advantages)
        return torch.ones(len(advantages), dtype=torch.bool) if live is None else live

    def add(self, samples: Tree, live: torch.Tensor) -> int:
        """Add a micro-batch, [N, ...], with the `live` samples, [N] bool; return its number in the step."""
        self.count(seen=len(live), trained=int(live.sum()))
        return self._samples.add(samples, live)

    def count(self, *, seen: int, trained: int) -> None:
        """Count `seen` samples, of them `trained` in passes."""
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
        """Yield the passes to make after a micro-batch: (pass, its samples, True if it completes the step).

        An empty pass has one sample, which must not count.

        Args:
            is_last: True after the last micro-batch of a step.
        """
        passes = self._passes(is_last)
        for number, (one, samples) in enumerate(self._samples.take(passes), start=1):
            yield one, samples, is_last and number == passes
        if is_last:
            self._samples.finish()

    def _passes(self, is_last: bool) -> int:
        if is_last:
            return self._most(self._samples.needed)
        # The smallest number of full passes over all ranks.
        return -self._most(-self._samples.full) if self._streams else 0

    def pop_counts(self) -> dict[str, float]:
        """Return the numbers of samples `seen` and `trained` since the last call."""
        counts = {"seen": float(self._seen), "trained": float(self._trained)}
        self._trained = self._seen = 0
        return counts


def skipped(counts: dict[str, float]) -> dict[str, float]:
    """Return the metric from the counts of `pop_counts`, summed over all ranks."""
    return {SKIPPED_METRIC: 1 - counts["trained"] / counts["seen"]} if counts["seen"] else {}


def couples_rows(model: torch.nn.Module) -> bool:
    """Return True if a layer of `model`, in training mode, normalises over the samples of a pass."""
    layers = (torch.nn.modules.batchnorm._BatchNorm,)
    return any(isinstance(module, layers) and module.training for module in model.modules())
