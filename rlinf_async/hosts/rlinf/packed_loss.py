"""RLinf's loss of whole micro-batches, of which only the live rows are computed, in passes over several.

RLinf divides by the valid entries of a micro-batch, by all its entries, or by the lengths of episodes, as its
config has it. Here nothing of that is known: each micro-batch is put together again, with masks and mask sums
as they are and zeros in rows without a gradient, and given to RLinf's own loss. The loss of a pass is the sum
over its micro-batches. Where a micro-batch is in several passes, rows of earlier ones are constants: they
count in its metrics and have had their gradient. So are rows that another rank has computed: that rank
evaluates the loss of the same micro-batch for the gradient of its rows, and this one for the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.packing import Part, Pass
from rlinf_async.core.tensors import Tree, leaf, map_tensors, rows_of
from rlinf_async.hosts.rlinf.losses import Loss

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
"""What RLinf gives a loss of each row that was computed, [rows, ...]."""
MASK_FIELDS = ("loss_mask", "loss_mask_sum")
"""What it gives of each row and the micro-batch has of all of them."""


@dataclass(frozen=True)
class WholeLoss:
    """The loss of a micro-batch, of which all rows have come."""

    loss: float
    metrics: dict[str, float]
    """As RLinf's loss gives them."""


class PackedLoss:
    """Calls a loss of RLinf for every micro-batch of a pass; outside of a pass, as it is."""

    def __init__(self, base: Loss) -> None:
        self._base = base
        self._wholes: dict[int, _Whole] = {}
        self._pass: Pass | None = None
        self._complete: list[WholeLoss] = []
        self._options: dict[str, Any] = {}
        """Arguments of the loss other than tensors, and their device, as of the last pass."""
        self._device = torch.device("cpu")

    def add(self, number: int, samples: Mapping[str, Any], live: torch.Tensor) -> None:
        """Micro-batch `number` of an optimizer step, of whose `samples`, [N, ...], some are `live`."""
        masks = {name: samples.get(name) for name in MASK_FIELDS}
        self._wholes[number] = _Whole(masks, rows=len(live), left=int(live.sum()))

    def given(self, part: Part) -> Tree:
        """Return what another rank has to know of a micro-batch to compute some of its rows."""
        whole = self._wholes[part.micro_batch]
        return {**whole.masks, "places": part.rows, "rows": torch.tensor(whole.rows)}

    def take_over(self, number: int, given: Tree) -> None:
        """Micro-batch `number` is a part of another rank's; `given` is what that rank says of it."""
        places = leaf(given, "places")
        masks: dict[str, Any] = {name: given[name] for name in MASK_FIELDS}
        rows = int(leaf(given, "rows"))
        self._wholes[number] = _Whole(masks, rows=rows, left=len(places), places=places)

    def pop_computed(self, number: int) -> Tree:
        """Return the rows of a micro-batch of another rank, all of which passes have computed."""
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
        """The block in which the rows of `one` pass are computed; yields what it completes, when it ends."""
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
        # Of a pass without live rows the graph is needed all the same: its gradients are 0, and not none.
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
        # Numbers, as RLinf makes them of what a loss returns: a tensor would keep its graph alive.
        return WholeLoss(float(loss.detach()), {name: float(value) for name, value in metrics.items()})


class _Whole:
    """A micro-batch as RLinf's loss is to see it, of which passes bring one row after another."""

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
        """Return the fields of all rows, [N, ...]: those `rows` are in a pass's `kwargs` from `start` on."""
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
        """Return the rows that were computed of another rank's micro-batch, [n, ...], with their masks."""
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
    """0, with a gradient of 0 for everything that was computed."""
    outputs = [kwargs["logprobs"], kwargs.get("values")]
    # Not a product with 0, which would make NaN of what is not finite.
    parts = [
        torch.where(torch.zeros_like(each, dtype=torch.bool), each, 0.0).sum()
        for each in outputs
        if isinstance(each, torch.Tensor)
    ]
    return torch.stack(parts).sum()
