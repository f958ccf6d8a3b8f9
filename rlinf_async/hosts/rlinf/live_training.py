"""Training of an RLinf actor on the samples that have a gradient, in fewer passes of its own.

Some of these rows are computed on another rank, so that ranks have equally many. FSDP averages gradients over
ranks, and every rank divides its loss by the same number of micro-batches: so a row has the same gradient on
any rank, given the masks of its micro-batch. The row's own rank gets its results back, for the metrics of its
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import Part, Pass
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.kit.rank_exchange import Exchange, evening
from rlinf_async.hosts.kit.samples import LivePasses
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


TOTAL_LOSS, ENTROPY_LOSS = "actor/total_loss", "actor/entropy_loss"
"""Metrics that RLinf's actor adds to those of the loss."""

Metrics = MutableMapping[str, list[float]]
TrainPass = Callable[[Tree, Metrics, bool], None]
"""RLinf's forward and backward pass over samples, the last of its step or not."""


class LiveTraining:
    """Takes micro-batches as RLinf cuts them, and trains their live rows in packed passes.

    Metrics are appended as RLinf would: one number for each micro-batch.
    """

    def __init__(
        self,
        loss: PackedLoss,
        leaves: LeftOut,
        *,
        size: int,
        accumulated: int,
        streams: bool,
        most: Callable[[int], int],
        inputs: HeldInputs,
        exchange: Exchange | None = None,
    ) -> None:
        """
        Args:
            size: the most rows of a pass.
            accumulated: micro-batches in an optimizer step; RLinf divides losses by this number.
            streams: True if passes are made before the micro-batches of a step are complete.
            most: returns the largest of a number over all ranks; a collective call.
            inputs: the inputs of the samples; other ranks get them with the rows.
            exchange: moves rows between ranks, to even them out; None: every rank keeps its rows.
        """
        self._loss, self.leaves, self._accumulated = loss, leaves, accumulated
        self._passes = LivePasses(leaves, size=size, streams=streams, most=most)
        self._even = EvenRows(self._passes, loss, exchange, inputs) if exchange is not None else None

    def micro_batch(self, samples: Tree, metrics: Metrics, train: TrainPass, *, is_last: bool) -> None:
        """Take a micro-batch, and make the passes that are due; `is_last`: it is the last of its step."""
        mask: Any = samples.get("loss_mask")
        live = self._passes.live(mask, leaf(samples, "advantages"))
        self._loss.add(self._passes.add(samples, live), samples, live)
        if is_last and self._even is not None:
            self._even.share()
        for one, packed, completes in self._passes.due(is_last=is_last):
            own: dict[str, list[float]] = {}
            with self._loss.passing(one) as complete:
                train(packed, own, completes)
            self._report(one, own, complete, metrics)
        if is_last and self._even is not None:
            self._report_whole(list(self._even.settle()), metrics)

    def pop_counts(self) -> dict[str, float]:
        """Return the numbers of samples `seen` and `trained` since the last call."""
        return self._passes.pop_counts()

    def _report(
        self, one: Pass, own: Mapping[str, list[float]], complete: Iterable[WholeLoss], metrics: Metrics
    ) -> None:
        """Append the metrics of a pass, `own`, and of the micro-batches that are `complete` with it."""
        whole = list(complete)
        if self.leaves.mixes or not one.size:
            self._report_whole(whole, metrics)
        else:
            for each in whole:
                _append(metrics, each.metrics)
            # The one micro-batch with live rows, with its bonus; those beside it have neither.
            silent = [0.0] * (len(whole) - 1)
            for name in (TOTAL_LOSS, ENTROPY_LOSS):
                _append_all(metrics, name, [*own[name], *silent])
        if one.size:
            for name in own.keys() - {TOTAL_LOSS, ENTROPY_LOSS}:
                _append_all(metrics, name, own[name])

    def _report_whole(self, whole: Sequence[WholeLoss], metrics: Metrics) -> None:
        """Append the metrics of micro-batches without a bonus of a pass."""
        for each in whole:
            _append(metrics, each.metrics)
        _append_all(metrics, TOTAL_LOSS, [each.loss / self._accumulated for each in whole])
        _append_all(metrics, ENTROPY_LOSS, [0.0] * len(whole))


def _append(metrics: Metrics, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        _append_all(metrics, name, [value])


def _append_all(metrics: Metrics, name: str, values: Iterable[float]) -> None:
    metrics.setdefault(name, []).extend(values)
