"""Pads batches to a few sizes, for policies that are compiled for each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def buckets_up_to(most: int, *, least: int) -> tuple[int, ...]:
    """Return sizes to pad to, ascending: `most`, and its halves down to the smallest request, `least`."""
    sizes = [most]
    # With halves, less than half of a padded batch is padding.
    while sizes[0] // 2 >= least and sizes[0] > 1:
        sizes.insert(0, sizes[0] // 2)
    return tuple(sizes)


def padded_size(size: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `size` samples; `size` itself if there is none."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def pad(observations: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Repeat the last sample of every field up to `size` samples; values without samples are unchanged."""
    return {name: _pad(value, size) for name, value in observations.items()}


def trim(value: object, size: int, *, copy: bool = False) -> Any:
    """Return the first `size` samples of a policy's result for a padded batch.

    `copy`: copy them, if the policy will overwrite the memory of `value`.
    """
    if isinstance(value, Mapping):
        return {name: trim(one, size, copy=copy) for name, one in value.items()}
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    if value.shape[0] > size:
        value = value[:size]
    return value.clone() if copy else value


def _pad(value: object, size: int) -> Any:
    if isinstance(value, Mapping):
        return pad(value, size)
    if isinstance(value, torch.Tensor) and value.dim():
        return torch.cat([value, value[-1:].expand(size - len(value), *value.shape[1:])])
    if isinstance(value, np.ndarray) and value.ndim:
        return np.concatenate([value, np.repeat(value[-1:], size - len(value), axis=0)])
    if isinstance(value, list | tuple):
        return type(value)([*value, *value[-1:] * (size - len(value))])
    return value
