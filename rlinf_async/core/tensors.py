"""Nested dictionaries of tensors: the samples of a batch, with one common leading dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, Union

import torch

Tree: TypeAlias = dict[str, Union[torch.Tensor, "Tree", None]]
Tensors: TypeAlias = dict[str, torch.Tensor]
Episodes: TypeAlias = list[Tensors]
"""Statistics of the episodes that have ended: name -> [episodes]."""
BEYOND_FIELD = "bootstrap_inputs"
"""The field of a rollout with the inputs of the last observation, [1, B, ...]; all others have T or T + 1
rows."""
MODEL_REWARDS = "reward_model_output"
"""This statistic has one item per reward of a reward model, not per episode."""


def leaf(tree: Tree, name: str) -> torch.Tensor:
    """The value at `name`, which must be a tensor and not a tree.

    Raises:
        KeyError: the tree has no `name`.
    """
    value = tree[name]
    assert isinstance(value, torch.Tensor), name
    return value


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Tree) -> Tree:
    """Apply `function` to every tensor; None stays None."""
    result: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            result[name] = map_tensors(function, value)
        else:
            result[name] = None if value is None else function(value)
    return result


def concatenate(
    trees: Sequence[Tree], dim: int = 0, *, join: Callable[..., torch.Tensor] = torch.cat
) -> Tree:
    """Concatenate trees of the same keys along `dim`; or join them there by `torch.stack`.

    Raises:
        ValueError: a key is missing in some of the trees, or is a tensor in one and a tree in another.
    """
    result: Tree = {}
    for name in dict.fromkeys(name for tree in trees for name in tree):
        values = [tree.get(name) for tree in trees]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        branches = [value for value in values if isinstance(value, dict)]
        if len(tensors) == len(trees):
            result[name] = join(tensors, dim)
        elif len(branches) == len(trees):
            result[name] = concatenate(branches, dim, join=join)
        elif tensors or branches:
            raise ValueError(
                f"{name!r} must be a tensor in all of {len(trees)} trees, or a dictionary in all of them"
            )
        else:
            result[name] = None
    return result


def slice_samples(tree: Tree, start: int, stop: int, dim: int = 0) -> Tree:
    """Samples `start` to `stop` along `dim`, as views."""
    return map_tensors(lambda tensor: tensor.narrow(dim, start, stop - start), tree)


def with_rows(tree: Tree, rows: Tree, numbers: torch.Tensor) -> Tree:
    """Return a copy of `tree`, [B, ...], with its rows `numbers`, [n] int64, replaced by `rows`, [n, ...].

    A key that is missing in `tree` becomes None; a key that is missing in `rows` is left out.
    """
    result: Tree = {}
    for name, own in rows.items():
        before = tree.get(name)
        if isinstance(own, dict) and isinstance(before, dict):
            result[name] = with_rows(before, own, numbers)
        elif isinstance(own, torch.Tensor) and isinstance(before, torch.Tensor):
            result[name] = before.index_copy(0, numbers, own.to(before.dtype))
        else:
            result[name] = None
    return result


def lengthened(tree: Tree, rows: int) -> Tree:
    """Tensors [T, ...] with their last row repeated `rows` times more: [T + rows, ...]."""
    if not rows:
        return tree
    return map_tensors(lambda tensor: torch.cat([tensor, tensor[-1:].expand(rows, *tensor.shape[1:])]), tree)


def rows_of(tree: Tree, rows: torch.Tensor) -> Tree:
    """Copy the samples `rows`, [R] int64; each tensor stays on its device."""
    return map_tensors(lambda tensor: tensor[rows.to(tensor.device)], tree)


def put_rows(
    values: torch.Tensor, rows: torch.Tensor | None, kept: torch.Tensor | None, *, size: int
) -> torch.Tensor:
    """Return [size, ...] with `values`, [R, ...], at `rows`, [R] int64, and `kept` or 0 at all other rows."""
    if rows is None:
        return values
    shape = (size, *values.shape[1:])
    everyone = values.new_zeros(shape) if kept is None else kept.to(values).reshape(shape).clone()
    everyone[rows] = values
    return everyone


def in_parts(most: int, *trees: Tree) -> Iterator[Tree]:
    """Yield the samples of `trees`, in order, in parts of `most`; the cuts depend on sizes alone.

    A part within one tree is a view; a part with samples of several trees is a copy.
    """
    part: list[Tree] = []
    room = most
    for tree in trees:
        start, size = 0, size_of(tree)
        while start < size:
            stop = min(start + room, size)
            part.append(slice_samples(tree, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield _as_one(part)
                part, room = [], most
    if part:
        yield _as_one(part)


def _as_one(trees: Sequence[Tree]) -> Tree:
    return trees[0] if len(trees) == 1 else concatenate(trees)


def size_of(tree: Tree, dim: int = 0) -> int:
    """Return the number of samples that the tree holds along `dim`.

    Raises:
        ValueError: the tree has no tensor.
    """
    for tensor in _tensors(tree):
        return int(tensor.shape[dim])
    raise ValueError(f"no tensor among {sorted(tree)}")


def _tensors(tree: Tree) -> Iterator[torch.Tensor]:
    for value in tree.values():
        if isinstance(value, dict):
            yield from _tensors(value)
        elif value is not None:
            yield value
