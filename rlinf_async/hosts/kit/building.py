"""Builds a policy without memory for its weights, to check that it can be built and to count its parameters.

Importing this module imports torch, and building a policy imports the libraries that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.overrides import TorchFunctionMode

from rlinf_async.hosts.policy_contract import checked_policy

DRAWING_SUFFIXES = ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "orthogonal_")
"""Endings of the names of torch's functions that fill a tensor with random numbers."""


class NothingDrawn(TorchFunctionMode):
    """Skips the initialisation of weights, which is slow, and on the meta device loads torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        # Methods get the tensor as first argument; `torch.nn.init` functions may get it as keyword `tensor`.
        tensor = args[0] if args else options.get("tensor")
        if isinstance(tensor, torch.Tensor) and func.__name__.endswith(DRAWING_SUFFIXES):
            return tensor
        return func(*args, **options)


def built(build: Callable[..., Any], section: Mapping[str, Any], *, small: bool = False) -> torch.nn.Module:
    """Return the policy that `build` makes from `section`, on the meta device.

    A `small` policy is built on the CPU: arithmetic on meta tensors loads torch's compiler.
    """
    config = section if OmegaConf.is_config(section) else OmegaConf.create(dict(section))
    with NothingDrawn(), torch.device("cpu" if small else "meta"):
        return checked_policy(build(config, torch.float32))


def parameters_of(build: Callable[..., Any], section: Mapping[str, Any], *, small: bool = False) -> int:
    """Return the number of parameters of the policy that `built` returns."""
    return sum(each.numel() for each in built(build, section, small=small).parameters())
