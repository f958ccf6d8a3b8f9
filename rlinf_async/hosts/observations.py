"""What environments show of themselves, as a policy of a package sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def merge(observations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Observations of several shards as one batch, in order; a field that is None for all stays None.

    Raises:
        ValueError: a field that is neither a tensor, an array, a list nor a mapping.
    """
    return {
        name: _joined(name, [observation[name] for observation in observations]) for name in observations[0]
    }


def _joined(name: str, values: list[Any]) -> Any:
    first = values[0]
    if all(value is None for value in values):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(values)
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, list):
        return [item for value in values for item in value]
    if isinstance(first, Mapping):
        return merge(values)
    raise ValueError(
        f"the observation {name!r} is a {type(first).__name__}; use a tensor, an array or a list with an "
        "item for each environment, or a mapping of such"
    )
