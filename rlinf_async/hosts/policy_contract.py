"""Checks the policies that packages declare, and the values that they return, before the loops use them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rlinf_async.core.tensors import size_of

SCORE_FIELDS = ("prev_logprobs", "prev_values")
"""Fields of a policy's result, beside its actions, with an item for each environment."""
METHODS = ("predict_action_batch", "forward")
"""The methods that every policy has; a module without a `forward` of its own cannot score actions."""


@contextmanager
def keeping_defaults(culprit: str = "the builder") -> Iterator[None]:
    """A block in which a policy's package is imported, or builds the policy.

    Raises:
        ValueError: `culprit` has changed torch's default type or device, which all code of the process would
            use, or lowered Python's recursion limit; this was undone.
    """
    dtype, device = torch.get_default_dtype(), torch.empty(0).device
    recursion = sys.getrecursionlimit()
    changes = []
    try:
        yield
    finally:
        if (now := torch.get_default_dtype()) is not dtype:
            torch.set_default_dtype(dtype)
            changes.append(f"type to {now}")
        if (there := torch.empty(0).device) != device:
            torch.set_default_device(None if device.type == "cpu" else device)
            changes.append(f"device to {there}")
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, recursion))
    if changes:
        raise ValueError(
            f"{culprit} has set torch's default {' and '.join(changes)}, for all code of its process; give "
            "tensors their type and device, or put the default back"
        )
    if limit < recursion:
        raise ValueError(
            f"{culprit} has lowered the recursion limit to {limit}, for all code of its process; leave it at "
            f"{recursion}"
        )


def checked_policy(policy: Any) -> torch.nn.Module:
    """Return what a builder has made, if it is a policy.

    Raises:
        ValueError: it is no module, or lacks a method.
    """
    if not isinstance(policy, torch.nn.Module):
        raise ValueError(f"the builder has returned {_sort(policy)}; expected was a torch.nn.Module")
    missing = [
        name
        for name in METHODS
        if not callable(method := getattr(policy, name, None))
        or getattr(method, "__func__", None) is torch.nn.Module.forward
    ]
    if missing:
        raise ValueError(f"{type(policy).__name__} has no method {' and no '.join(missing)}")
    return policy


def checked_decision(value: Any, size: int, *, scored: bool) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the checked result of `predict_action_batch` for `size` environments.

    Args:
        scored: True if actions will be scored again, which needs log-probabilities and inputs.

    Returns:
        Actions [B, C, action_dim] of the C steps of a decision; and the policy's result for them, with
        `prev_logprobs` [B, ...], `prev_values` [B, ...] or None, and `forward_inputs` {name: [B, ...]} where
        the policy returns them.

    Raises:
        ValueError: the policy returned something else.
    """
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[1], Mapping):
        raise ValueError(
            "predict_action_batch has to return actions and a mapping with the policy's result for them"
        )
    actions, result = _tensor("actions", value[0], size), dict(value[1])
    if actions is None or actions.dim() != 3:
        given = "None" if actions is None else list(actions.shape)
        raise ValueError(
            f"the policy has given actions {given} for {size} environments; expected was "
            f"[{size}, steps of a decision, action_dim]"
        )
    needed = ("prev_logprobs", "forward_inputs") if scored else ()
    if missing := [name for name in needed if result.get(name) is None]:
        raise ValueError(
            f"the policy has given no {' and no '.join(missing)} beside its actions; expected was an item "
            f"for each of {size} environments"
        )
    inputs = result.get("forward_inputs") or {}
    if not isinstance(inputs, Mapping):
        raise ValueError(f"the policy has given forward_inputs as {_sort(inputs)}; expected was a mapping")
    result |= {
        name: _tensor(name, result[name], size) for name in SCORE_FIELDS if result.get(name) is not None
    }
    read = {f"forward_inputs.{name}": name for name in inputs}
    result["forward_inputs"] = {name: _tensor(field, inputs[name], size) for field, name in read.items()}
    return actions, result


def scores_by(forward: Callable[[], Any], inputs: Any) -> Mapping[str, Any]:
    """Return the checked result of `forward`, a call of a policy's `forward` for `inputs`; see
    `checked_scores`.
    """
    # As a context: a policy that switches gradients off, and not on again, does so within its call only.
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        value = forward()
    return checked_scores(value, inputs)


def checked_scores(value: Any, inputs: Any) -> Mapping[str, Any]:
    """Return the checked result of a policy's `forward` for forward inputs, a tree of tensors [N, ...].

    Raises:
        ValueError: the policy returned something else, or log-probabilities that nothing can be trained by.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("logprobs"), torch.Tensor):
        given = f"a mapping with {', '.join(map(str, value))}" if isinstance(value, Mapping) else _sort(value)
        raise ValueError(f"the policy's forward has given {given}; expected was a mapping with logprobs")
    logprobs, size = value["logprobs"], size_of(inputs)
    for name in ("logprobs", "values"):
        if value.get(name) is not None:
            _tensor(f"{name} by forward", value[name], size, of="samples")
    if torch.is_grad_enabled() and not logprobs.requires_grad:
        raise ValueError(
            "the policy's forward has given logprobs without a gradient, so that nothing can be trained: "
            "they are detached, or computed without gradients, or no parameter that they depend on is trained"
        )
    return value


def _tensor(name: str, value: Any, size: int, *, of: str = "environments") -> Any:
    if isinstance(value, Mapping):
        return {field: _tensor(f"{name}.{field}", value, size) for field, value in value.items()}
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        value = _from_array(name, value, size)
    if not value.dim() or len(value) != size:
        raise ValueError(
            f"the policy has given {name} {list(value.shape)} for {size} {of}; expected was an item for each"
        )
    return value


def _from_array(name: str, value: Any, size: int) -> torch.Tensor:
    plain = [each.detach().cpu().numpy() for each in value] if _holds_tensors(value) else value
    try:
        # A copy in C order, as torch refuses negative strides.
        return torch.as_tensor(np.array(plain, order="C"))
    except (TypeError, ValueError) as error:  # texts, objects, rows of different lengths
        raise ValueError(
            f"the policy has given {name} as {_sort(value)} that is no array of numbers; expected was an "
            f"item for each of {size} environments"
        ) from error


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(torch.is_tensor(each) for each in value)


def _sort(value: object) -> str:
    """Return the name of a value's type for a message."""
    return "None" if value is None else f"a {type(value).__name__}"
