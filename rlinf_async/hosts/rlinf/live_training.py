"""Training of an RLinf actor on the samples that have a gradient, in fewer passes of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import LiveSamples, Packing, Pass
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.rlinf.packed_loss import PackedLoss, WholeLoss

LOGGER = logging.getLogger(__name__)
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
    ) -> None:
        """
        Args:
            size: the most rows of a pass.
            accumulated: micro-batches in an optimizer step, by which RLinf divides their losses.
            streams: whether passes are made before a step is complete.
            most: the largest of a number over all ranks, all of which call it.
        """
        self._loss, self.leaves, self._streams, self._most = loss, leaves, streams, most
        self._accumulated = accumulated
        self._samples = LiveSamples(Packing(size=size, mixes=leaves.mixes))
        self._trained = self._seen = 0

    def micro_batch(self, samples: Tree, metrics: Metrics, train: TrainPass, *, is_last: bool) -> None:
        """Train what is to be trained now that this micro-batch has come, the last of its step or not."""
        live = self._live(samples)
        self._seen += len(live)
        self._trained += int(live.sum())
        self._loss.add(self._samples.add(samples, live), samples, live)
        passes = self._passes(is_last)
        for number, (one, packed) in enumerate(self._samples.take(passes), start=1):
            own: dict[str, list[float]] = {}
            with self._loss.passing(one) as complete:
                train(packed, own, is_last and number == passes)
            self._report(one, own, complete, metrics)
        if is_last:
            self._samples.finish()

    def pop_counts(self) -> dict[str, float]:
        """Samples since this was asked before: all, and those that were trained on."""
        counts = {"seen": float(self._seen), "trained": float(self._trained)}
        self._trained = self._seen = 0
        return counts

    def _live(self, samples: Tree) -> torch.Tensor:
        mask: Any = samples.get("loss_mask")
        live = self.leaves.live(mask, leaf(samples, "advantages"))
        size = len(leaf(samples, "advantages"))
        return torch.ones(size, dtype=torch.bool) if live is None else live

    def _passes(self, is_last: bool) -> int:
        if is_last:
            return self._most(self._samples.needed)
        # As many as every rank can fill.
        return -self._most(-self._samples.full) if self._streams else 0

    def _report(
        self, one: Pass, own: Mapping[str, list[float]], complete: Iterable[WholeLoss], metrics: Metrics
    ) -> None:
        """Append the metrics of a pass, `own`, and of the micro-batches that are `complete` with it."""
        whole = list(complete)
        for each in whole:
            _append(metrics, each.metrics)
        if self.leaves.mixes or not one.size:
            _append_all(metrics, TOTAL_LOSS, [each.loss / self._accumulated for each in whole])
            _append_all(metrics, ENTROPY_LOSS, [0.0] * len(whole))
        else:
            # The one micro-batch with live rows, with its bonus; those beside it have neither.
            silent = [0.0] * (len(whole) - 1)
            for name in (TOTAL_LOSS, ENTROPY_LOSS):
                _append_all(metrics, name, [*own[name], *silent])
        if one.size:
            for name in own.keys() - {TOTAL_LOSS, ENTROPY_LOSS}:
                _append_all(metrics, name, own[name])


def _append(metrics: Metrics, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        _append_all(metrics, name, [value])


def _append_all(metrics: Metrics, name: str, values: Iterable[float]) -> None:
    metrics.setdefault(name, []).extend(values)


def couples_rows(model: torch.nn.Module) -> bool:
    """Return True if a layer of `model`, in training mode, normalises by the rows that share a pass."""
    layers = (torch.nn.modules.batchnorm._BatchNorm,)
    return any(isinstance(module, layers) and module.training for module in model.modules())
