"""RLinf's loss of whole micro-batches, from passes that compute only the live rows of several micro-batches.

RLinf divides by the valid entries of a micro-batch, by all its entries, or by the lengths of episodes,
depending on its config. This module need not know which: it rebuilds each micro-batch, with its masks and
mask sums and with zeros in rows without a gradient, and calls RLinf's own loss. The loss of a pass is the sum
over its micro-batches. If a micro-batch is in several passes, rows of earlier passes are constants: they
count in its metrics, and have had their gradient. Rows that another rank has computed are constants, too:
that rank evaluates the loss of the same micro-batch for the gradient of its rows, and this rank for the
metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.packing import Part, Pass
from rlinf_async.core.tensors import Tree, leaf, map_tensors, rows_of
from rlinf_async.hosts.rlinf.corrected_loss import Loss

ROW_FIELDS = (
    "logprobs",
    "old_logprobs",
    "proximal_logprobs",
    "versions",
    "advantages",
    "values",
    "prev_values",
    "returns",
)
"""Arguments of RLinf's losses that exist for computed rows only, [rows, ...]."""
MASK_FIELDS = ("loss_mask", "loss_mask_sum")
"""Arguments of RLinf's losses that a micro-batch has for all of its rows, [N, ...]."""


@dataclass(frozen=True)
class WholeLoss:
    """The loss of a micro-batch, after all of its live rows were computed."""

    loss: float
    metrics: dict[str, float]
    """The metrics that RLinf's loss returns."""


class PackedLoss:
    """Calls a loss of RLinf for every micro-batch of a pass; outside of a pass, just calls the loss."""

    def __init__(self, base: Loss) -> None:
        self._base = base
        self._wholes: dict[int, _Whole] = {}
        self._pass: Pass | None = None
        self._complete: list[WholeLoss] = []
        self._options: dict[str, Any] = {}
        """Arguments of the loss other than tensors, and the tensors' device, from the last pass."""
        self._device = torch.device("cpu")

    def add(self, number: int, samples: Mapping[str, Any], live: torch.Tensor) -> None:
        """Add micro-batch `number` of an optimizer step: `samples` [N, ...], of them `live` [N] bool."""
        masks = {name: samples.get(name) for name in MASK_FIELDS}
        self._wholes[number] = _Whole(masks, rows=len(live), left=int(live.sum()))

    def given(self, part: Part) -> Tree:
        """Return the fields of a micro-batch that another rank needs to compute some of its rows."""
        whole = self._wholes[part.micro_batch]
        return {**whole.masks, "places": part.rows, "rows": torch.tensor(whole.rows)}

    def take_over(self, number: int, given: Tree) -> None:
        """Add micro-batch `number`, with rows of another rank; `given` is that rank's result of `given`."""
        places = leaf(given, "places")
        masks: dict[str, Any] = {name: given[name] for name in MASK_FIELDS}
        rows = int(leaf(given, "rows"))
        self._wholes[number] = _Whole(masks, rows=rows, left=len(places), places=places)

    def pop_computed(self, number: int) -> Tree:
        """Return the computed rows of another rank's micro-batch, after its last pass, and forget them."""
        return self._wholes.pop(number).computed()

    def bring(self, part: Part, computed: Tree) -> WholeLoss | None:
        """Take rows of a micro-batch that another rank has computed; return its loss, if it is complete."""
        whole = self._wholes[part.micro_batch]
        there = map_tensors(lambda tensor: tensor.to(self._device), computed)
        fields = whole.with_rows(part.rows, 0, there)
        if not whole.complete:
            return None
        with torch.no_grad():
            return self._pop_whole(part.micro_batch, *self._base(**{**self._options, **fields}))

    @contextmanager
    def passing(self, one: Pass) -> Iterator[list[WholeLoss]]:
        """Compute the pass `one` inside the block; the yielded list then has the losses that it completed."""
        self._pass, self._complete = one, []
        try:
            yield self._complete
        finally:
            self._pass = None

    def __call__(self, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        if self._pass is None:
            return self._base(**kwargs)
        self._device = kwargs["logprobs"].device
        self._options = {**kwargs, **dict.fromkeys((*ROW_FIELDS, *MASK_FIELDS))}
        # A pass without live rows needs the graph, too: its gradients are 0, not None.
        total, start = _nothing(kwargs), 0
        for part in self._pass.parts:
            total = total + self._part(part, start, kwargs)
            start += len(part.rows)
        return total, {}

    def _part(self, part: Part, start: int, kwargs: Mapping[str, Any]) -> torch.Tensor:
        whole = self._wholes[part.micro_batch]
        fields = whole.with_rows(part.rows, start, kwargs)
        loss, metrics = self._base(**{**kwargs, **fields})
        if whole.complete and not whole.is_taken_over:
            self._complete.append(self._pop_whole(part.micro_batch, loss, metrics))
        return loss

    def _pop_whole(self, number: int, loss: torch.Tensor, metrics: Mapping[str, Any]) -> WholeLoss:
        del self._wholes[number]
        # Converted to numbers, as RLinf does: a tensor would keep its graph alive.
        return WholeLoss(float(loss.detach()), {name: float(value) for name, value in metrics.items()})


class _Whole:
    """A micro-batch in the form that RLinf's loss gets, completed by the rows of one or more passes."""

    def __init__(
        self,
        masks: Mapping[str, torch.Tensor | None],
        *,
        rows: int,
        left: int,
        places: torch.Tensor | None = None,
    ) -> None:
        """
        Args:
            masks: the fields of `MASK_FIELDS`, [N, ...].
            rows: N.
            left: the number of rows that are still to be computed.
            places: [n] int64, the rows that this rank computes of another rank's micro-batch.
        """
        self.masks, self.rows = masks, rows
        self._left, self._places = left, places
        self._brought: dict[str, torch.Tensor] = {}

    @property
    def complete(self) -> bool:
        return not self._left

    @property
    def is_taken_over(self) -> bool:
        """True if the micro-batch is another rank's."""
        return self._places is not None

    def with_rows(self, rows: torch.Tensor, start: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of all rows, [N, ...], with `rows` taken from a pass's `kwargs` at `start`."""
        self._left -= len(rows)
        at = rows if self._places is None else self._places[rows]
        fields = {}
        for name in ROW_FIELDS:
            if isinstance(computed := kwargs.get(name), torch.Tensor):
                fields[name] = self._put(name, at, computed[start : start + len(rows)])
        for name in MASK_FIELDS:
            if isinstance(computed := kwargs.get(name), torch.Tensor):
                mask = self.masks[name]
                assert mask is not None, name
                # RLinf has only reshaped it, row by row.
                fields[name] = mask.to(computed.device).reshape(self.rows, *computed.shape[1:])
                self._brought[name] = fields[name]
        return fields

    def computed(self) -> Tree:
        """Return the computed rows of another rank's micro-batch, [n, ...], with their masks."""
        assert self._places is not None, "the micro-batch is this rank's own"
        return rows_of(dict(self._brought), self._places)

    def _put(self, name: str, rows: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        held = self._brought.get(name)
        if held is None:
            held = computed.detach().new_zeros(self.rows, *computed.shape[1:])
        whole = held.index_put((rows.to(computed.device),), computed)
        self._brought[name] = whole.detach()
        return whole


def _nothing(kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return 0 with a gradient of 0 for all computed tensors."""
    outputs = [kwargs["logprobs"], kwargs.get("values")]
    # Not a product with 0: a number that is not finite would become NaN.
    parts = [
        torch.where(torch.zeros_like(each, dtype=torch.bool), each, 0.0).sum()
        for each in outputs
        if isinstance(each, torch.Tensor)
    ]
    return torch.stack(parts).sum()
