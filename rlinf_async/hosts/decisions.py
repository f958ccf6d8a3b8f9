"""The answer of a package's policy to a batch: tensors, whatever arrays its numbers were in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

SCORE_FIELDS = ("prev_logprobs", "prev_values")


def decided(given: Any, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the checked result of `predict_action_batch` for `size` environments.

    Returns:
        Actions [B, C, action_dim] of the C steps of a decision; and what the policy says of them, with
        `prev_logprobs` [B, ...], `prev_values` [B, ...] or None, and `forward_inputs` {name: [B, ...]} where
        it gives them.

    Raises:
        ValueError: the policy has returned something else.
    """
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[1], Mapping):
        raise ValueError("predict_action_batch has to return actions and a mapping of what it says of them")
    actions, result = _tensor("actions", given[0], size), dict(given[1])
    if actions.dim() != 3:
        raise ValueError(
            f"the policy has given actions {list(actions.shape)} for {size} environments; expected was "
            f"[{size}, steps of a decision, action_dim]"
        )
    inputs = result.get("forward_inputs") or {}
    result |= {
        name: _tensor(name, result[name], size) for name in SCORE_FIELDS if result.get(name) is not None
    }
    read = {f"forward_inputs.{name}": name for name in inputs}
    result["forward_inputs"] = {name: _tensor(field, inputs[name], size) for field, name in read.items()}
    return actions, result


def _tensor(name: str, given: Any, size: int) -> Any:
    if isinstance(given, Mapping):
        return {field: _tensor(f"{name}.{field}", value, size) for field, value in given.items()}
    if given is None:
        return None
    if not isinstance(given, torch.Tensor):
        given = torch.as_tensor(np.asarray(given))
    if not given.dim() or len(given) != size:
        raise ValueError(
            f"the policy has given {name} {list(given.shape)} for {size} environments; expected was an item "
            "for each"
        )
    return given
