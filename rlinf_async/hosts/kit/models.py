"""Whether a policy of `rlinf_async.models` can be built of its section, before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.overrides import TorchFunctionMode

from rlinf_async.hosts.reasons import Reason

MODELS = "rlinf_async.models"


DRAWS = ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "orthogonal_")
"""How the names of torch's functions end that fill a tensor with random numbers."""


class NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights, for which torch loads its compiler: seconds of imports."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        tensor = args[0] if args else given.get("tensor")
        if isinstance(tensor, torch.Tensor) and tensor.is_meta and func.__name__.endswith(DRAWS):
            return tensor
        return func(*args, **given)


def build_without_memory(
    build: Callable[..., Any], section: Mapping[str, Any], *, key: str, small: bool = False
) -> Any:
    """The policy that `build` makes of `section`, which stands at `key`, with parameters that hold nothing.

    A `small` one is made as it is: arithmetic on parameters that hold nothing loads torch's compiler.

    Raises:
        ValueError: it cannot be made, with what the builder has said.
    """
    try:
        with NothingDrawn(), torch.device("cpu" if small else "meta"):
            return build(OmegaConf.create(dict(section)), torch.float32)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        name = section.get("model_type")
        raise ValueError(f"{key} does not make a {name}: {type(error).__name__}: {said}") from error


def unbuildable(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """That a policy which a package declares cannot be built of its section; nothing of other models."""
    entries = {entry.name: entry for entry in entry_points(group=MODELS)}
    entry = entries.get(str(section.get("model_type")))
    if entry is None or section.get("model_path"):
        return  # with a checkpoint the builder may read gigabytes
    try:
        build_without_memory(entry.load(), section, key=key)
    except ImportError as error:
        yield Reason(f"{key}.model_type={entry.name} cannot be imported: {error}")
    except ValueError as error:
        yield Reason(str(error))
