"""Evens out the live rows of an optimizer step over the ranks: some rows are computed on another rank.

FSDP averages gradients over ranks, and every rank divides its loss by the same number of micro-batches: so a
row has the same gradient on any rank, given the masks of its micro-batch. The row's own rank gets its results
back, for the metrics of its micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.packing import Part, evening
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.kit.live_passes import LivePasses
from rlinf_async.hosts.kit.rank_exchange import Exchange
from rlinf_async.hosts.rlinf.packed_loss import PackedLoss, WholeLoss

SAMPLES_FIELD, MASKS_FIELD = "samples", "masks"


class EvenRows:
    """Moves rows to other ranks before the last passes of an optimizer step, and returns their results."""

    def __init__(self, passes: LivePasses, loss: PackedLoss, exchange: Exchange, inputs: HeldInputs) -> None:
        self._passes, self._loss, self._exchange, self._inputs = passes, loss, exchange, inputs
        self._given: dict[int, list[Part]] = {}
        self._taken: dict[int, list[int]] = {}
        self._numbers: list[torch.Tensor] = []
        """Numbers in `inputs` of the rows that were taken from other ranks."""

    def share(self) -> None:
        """Give rows to ranks with fewer, or take rows; called after the last micro-batch of the step."""
        moves = evening(self._exchange.counts(self._passes.waiting), size=self._passes.size)
        rank, sent = self._exchange.rank, {}
        for move in moves:
            if move.giver == rank:
                parts = self._passes.give(move.rows)
                self._given[move.taker] = [part for part, _ in parts]
                sent[move.taker] = _numbered(
                    {SAMPLES_FIELD: self._inputs.with_inputs(samples), MASKS_FIELD: self._loss.given(part)}
                    for part, samples in parts
                )
        if not moves:
            return
        received = self._exchange.swap(sent, [move.giver for move in moves if move.taker == rank])
        for giver, trees in received.items():
            self._taken[giver] = [self._take_over(tree) for tree in _in_order(trees)]

    def settle(self) -> Iterator[WholeLoss]:
        """Yield the losses of this rank's micro-batches that are completed by rows from other ranks."""
        sent = {
            giver: _numbered(self._loss.pop_computed(number) for number in numbers)
            for giver, numbers in self._taken.items()
        }
        given, self._given, self._taken = self._given, {}, {}
        for numbers in self._numbers:
            self._inputs.let_go(numbers)
        self._numbers.clear()
        received = self._exchange.swap(sent, given.keys()) if sent or given else {}
        for taker, parts in given.items():
            for part, computed in zip(parts, _in_order(received[taker]), strict=True):
                if (whole := self._loss.bring(part, computed)) is not None:
                    yield whole

    def _take_over(self, tree: Tree) -> int:
        samples, masks = tree[SAMPLES_FIELD], tree[MASKS_FIELD]
        assert isinstance(samples, dict)
        assert isinstance(masks, dict)
        # With numbers for inputs, like this rank's own rows: a pass may have both.
        samples = self._inputs.with_numbers(samples)
        if INPUTS_FIELD in samples:
            self._numbers.append(leaf(samples, INPUTS_FIELD))
        number = self._passes.take_over(samples)
        self._loss.take_over(number, masks)
        return number


def _numbered(trees: Iterator[Tree]) -> Tree:
    return {str(number): tree for number, tree in enumerate(trees)}


def _in_order(trees: Tree) -> Iterator[Tree]:
    for number in range(len(trees)):
        tree = trees[str(number)]
        assert isinstance(tree, dict)
        yield tree
