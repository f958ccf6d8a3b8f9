"""Building a policy without memory for its weights, to see whether it can be built, and how large it is.

Importing this takes the time of torch, and building the time of whatever the policy is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.overrides import TorchFunctionMode

DRAWING_SUFFIXES = ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "orthogonal_")
"""The last parts of the names of torch's functions that fill a tensor with random numbers."""


class NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights, which takes long, and without data loads torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        # Methods of tensors have it first; functions of `torch.nn.init` may be given it by the name `tensor`.
        tensor = args[0] if args else options.get("tensor")
        if isinstance(tensor, torch.Tensor) and func.__name__.endswith(DRAWING_SUFFIXES):
            return tensor
        return func(*args, **options)


def parameters_of(build: Callable[..., Any], section: Mapping[str, Any], *, small: bool = False) -> int:
    """Return the number of parameters of the policy that `build` makes of `section`; they hold no data.

    A `small` policy is made for real: arithmetic on parameters without data loads torch's compiler.
    """
    with NothingDrawn(), torch.device("cpu" if small else "meta"):
        policy = build(OmegaConf.create(dict(section)), torch.float32)
    return sum(each.numel() for each in policy.parameters())
