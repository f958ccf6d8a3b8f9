"""Nested dictionaries of tensors: the samples of a batch, with one common leading dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, Union

import torch

Tree: TypeAlias = dict[str, Union[torch.Tensor, "Tree", None]]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Tree) -> Tree:
    """Apply `function` to every tensor; None stays None."""
    result: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            result[name] = map_tensors(function, value)
        else:
            result[name] = None if value is None else function(value)
    return result


def concatenate(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Concatenate trees of the same keys along `dim`."""
    result: Tree = {}
    for name, first in trees[0].items():
        values = [tree[name] for tree in trees]
        if isinstance(first, dict):
            result[name] = concatenate([value for value in values if isinstance(value, dict)], dim)
        elif first is None:
            result[name] = None
        else:
            result[name] = torch.cat([value for value in values if isinstance(value, torch.Tensor)], dim)
    return result


def slice_samples(tree: Tree, start: int, stop: int, dim: int = 0) -> Tree:
    """Samples `start` to `stop` along `dim`, as views."""
    return map_tensors(lambda tensor: tensor.narrow(dim, start, stop - start), tree)


def first_tensor(tree: Tree) -> torch.Tensor:
    """Any tensor of the tree.

    Raises:
        ValueError: there is none.
    """
    for value in tree.values():
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, dict) and value:
            return first_tensor(value)
    raise ValueError(f"no tensor among {sorted(tree)}")


def size_of(tree: Tree, dim: int = 0) -> int:
    """How many samples the tree holds along `dim`."""
    return int(first_tensor(tree).shape[dim])
