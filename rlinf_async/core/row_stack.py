"""Tensors of the rows of a rollout that become one tensor where they are read, and are not copied before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlinf_async.core.tensors import Tree, concatenate

SMALLEST_ROW_BYTES = 4096
"""Smaller rows are copied at once: that costs less than to tell a reader about each of them."""


class RowStack:
    """T tensors [B, ...] of one shape and type, in the place of their stack, [T, B, ...].

    It is cut as a tensor is, and `wire.payloads` makes a tensor of it.
    """

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> RowStack:
        return RowStack(self.rows[rows])

    def narrow(self, dim: int, start: int, length: int) -> RowStack:
        """As that of a tensor, for every dimension but the first."""
        if length == self.rows[0].shape[dim - 1]:
            return self
        return RowStack([row.narrow(dim - 1, start, length) for row in self.rows])


def stacked(rows: Sequence[Tree]) -> Tree:
    """Return T trees [B, ...] as one, [T, B, ...]. A name that has large rows becomes a `RowStack`, or a
    tensor without a copy, where the rows lie one behind the other in memory.

    Raises:
        ValueError: a key is missing in some of the trees.
    """
    stacks: dict[str, RowStack | torch.Tensor] = {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if _is_large(values):
            stacks[name] = _joined(values)  # type: ignore[arg-type]
    small = [{name: value for name, value in row.items() if name not in stacks} for row in rows]
    # As a tensor for those who cut trees; no one computes with it.
    return {**concatenate(small, join=torch.stack), **stacks}  # type: ignore[dict-item]


def _joined(rows: Sequence[torch.Tensor]) -> RowStack | torch.Tensor:
    first, storage = rows[0], rows[0].untyped_storage().data_ptr()
    for number, row in enumerate(rows):
        apart = row.data_ptr() != first.data_ptr() + number * first.nbytes
        if apart or not row.is_contiguous() or row.untyped_storage().data_ptr() != storage:
            return RowStack(rows)
    return first.as_strided((len(rows), *first.shape), (first.numel(), *first.stride()))


def _is_large(values: Sequence[torch.Tensor | Tree | None]) -> bool:
    first = values[0]
    if not isinstance(first, torch.Tensor) or first.nbytes < SMALLEST_ROW_BYTES:
        return False
    shape, dtype = first.shape, first.dtype
    return all(
        isinstance(value, torch.Tensor) and value.shape == shape and value.dtype == dtype for value in values
    )
