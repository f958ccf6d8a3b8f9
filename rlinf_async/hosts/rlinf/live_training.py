"""Training of an RLinf actor on the samples that have a gradient, in fewer passes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import Pass
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.kit.live_passes import LivePasses
from rlinf_async.hosts.kit.rank_exchange import Exchange
from rlinf_async.hosts.rlinf.even_rows import EvenRows
from rlinf_async.hosts.rlinf.packed_loss import PackedLoss, WholeLoss

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
