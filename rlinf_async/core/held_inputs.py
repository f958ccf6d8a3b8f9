"""Inputs of samples that stay where they are until a pass over some of the samples needs them.

Nearly all bytes of a rollout are the policy's inputs, which are observations for the most part. A learner
joins, shuffles and cuts rollouts, and would copy the inputs each time. So its rollouts have numbers in the
place of inputs, one for each sample, which are joined, shuffled and cut as any other field is. The inputs are
copied once: those of a pass, when the pass is made.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, map_tensors, size_of


class HeldInputs:
    """The inputs of the samples that a learner rank trains, as their pieces have brought them."""

    def __init__(self, *, pinned: bool = False) -> None:
        """`pinned`: copies are made in page-locked memory, from which an accelerator reads faster."""
        # torch keeps page-locked memory that was given back, and does not lend it again before copies out of
        # it are done: frameworks copy to a GPU without waiting. Of other memory it keeps little.
        self._empty = partial(torch.empty, pin_memory=True) if pinned else LentMemory().empty
        self.clear()

    def clear(self) -> None:
        """Let go of all inputs; their numbers mean nothing from now on."""
        self._like: Tree | None = None
        self._trees: list[dict[str, Any]] = []
        """Trees of `_bytes_of` the inputs."""
        self._starts: list[int] = []
        self._size = 0

    def hold(self, inputs: Tree) -> torch.Tensor:
        """Return the numbers, [T, B] int64, of inputs [T, B, ...], which must not change from now on.

        Raises:
            ValueError: a name, shape or type differs from those of the inputs that came first in the batch.
        """
        steps, width = size_of(inputs), size_of(inputs, 1)
        samples = map_tensors(lambda tensor: tensor.flatten(0, 1), inputs)
        if self._like is None:
            self._like = map_tensors(lambda tensor: tensor[:0].clone(), samples)
        _compare(self._like, samples)
        self._trees.append(map_tensors(_bytes_of, samples))  # type: ignore[arg-type]
        self._starts.append(self._size)
        self._size += steps * width
        return torch.arange(self._starts[-1], self._size).reshape(steps, width)

    def let_go(self, numbers: torch.Tensor) -> None:
        """Let go of the inputs that one `hold` has given these numbers."""
        self._trees[self._tree_of(int(numbers.flatten()[0]))] = {}

    def copied(self, numbers: torch.Tensor) -> Tree:
        """Return copies of the inputs of these samples, [N] int64: [N, ...]."""
        rows: list[tuple[Any, int]] = []
        for number in numbers.tolist():
            tree = self._tree_of(number)
            rows.append((self._trees[tree], number - self._starts[tree]))
        assert self._like is not None, "numbers come from inputs that are held"
        return self._stacked(self._like, rows)

    def with_inputs(self, samples: Mapping[str, Any]) -> Tree:
        """Return `samples`, [N, ...], with copies of their inputs in the place of numbers."""
        numbers = samples.get(INPUTS_FIELD)
        if not isinstance(numbers, torch.Tensor):
            return dict(samples)
        return {**samples, INPUTS_FIELD: self.copied(numbers)}

    def with_numbers(self, samples: Tree) -> Tree:
        """Return `samples`, [N, ...], with numbers in the place of their inputs, which are held."""
        inputs = samples.get(INPUTS_FIELD)
        if not isinstance(inputs, dict):
            return samples
        one_row = map_tensors(lambda tensor: tensor.unsqueeze(0), inputs)
        return {**samples, INPUTS_FIELD: self.hold(one_row).flatten()}

    def _tree_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _stacked(self, like: Tree, rows: Sequence[tuple[Any, int]]) -> Tree:
        result: Tree = {}
        for name, kind in like.items():
            own = [(tree[name], row) for tree, row in rows]
            if isinstance(kind, dict):
                result[name] = self._stacked(kind, own)
            elif kind is None:
                result[name] = None
            else:
                copy = self._empty((len(own), *kind.shape[1:]), dtype=kind.dtype)
                # By numpy: torch takes longer to make a view of a row than to copy a small picture.
                for place, (array, row) in zip(_bytes_of(copy), own, strict=True):
                    place[:] = array[row]
                result[name] = copy
        return result


def _bytes_of(samples: torch.Tensor) -> np.ndarray:
    """Return samples [N, ...] as an array, [N, bytes] uint8, without a copy if they are contiguous."""
    one_each = samples.contiguous().reshape(len(samples), -1)
    return one_each.view(torch.uint8).numpy()


class LentMemory:
    """Memory for tensors, which is used again once the tensors in it are gone.

    Pages that are new cost more than a copy into them, and an allocator gives large blocks back at once.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[np.ndarray, weakref.ref[np.ndarray]]] = []
        """Blocks, [bytes] uint8, each with the array that all tensors in it keep alive."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the CPU, its values undefined."""
        count = math.prod(shape)
        size = max(1, count) * dtype.itemsize  # an array of nothing cannot change its type
        block = self._take(size)
        lent = block[:size]
        self._blocks.append((block, weakref.ref(lent)))
        return torch.from_numpy(lent).view(dtype)[:count].view(*shape)

    def _take(self, size: int) -> np.ndarray:
        """Take a block out of the list, or make one in the place of a free one that is too small."""
        free = [entry for entry in self._blocks if entry[1]() is None]
        enough = [entry for entry in free if entry[0].nbytes >= size]
        chosen = min(enough or free, key=lambda entry: abs(entry[0].nbytes - size), default=None)
        if chosen is not None:
            self._blocks = [entry for entry in self._blocks if entry is not chosen]
        if chosen is not None and enough:
            return chosen[0]
        return torch.empty(size, dtype=torch.uint8).numpy()


def _compare(first: Tree, other: Tree) -> None:
    for name in {**first, **other}:
        kinds = [_kind(tree.get(name)) for tree in (first, other)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"forward_inputs[{name!r}] is {kinds[0]} in one rollout and {kinds[1]} in another; a policy "
                "must return inputs of the same names, shapes and types with every answer"
            )
        one, another = first.get(name), other.get(name)
        if isinstance(one, dict) and isinstance(another, dict):
            _compare(one, another)


def _kind(value: torch.Tensor | Tree | None) -> str:
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape[1:])} {value.dtype}".replace("torch.", "")
    return "missing" if value is None else "a dictionary"
