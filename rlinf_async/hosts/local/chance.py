"""The chance of a policy that draws from torch's own generators, which belong to the whole process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SEEDED_TAG = torch.Tag.nondeterministic_seeded
"""The tag of torch's operations that draw."""
ATEN = torch.ops.aten
LIKE_OPERATIONS = {
    ATEN.rand_like: ATEN.uniform_,
    ATEN.randn_like: ATEN.normal_,
}
"""Draws that take no generator in every version of torch, and operations that fill an empty tensor alike."""


class OwnChance(TorchDispatchMode):
    """A block in which this thread draws by a seed of its own, whatever operations draw in it.

    torch's default generators are of the whole process: seeding them for a moment would have environments,
    which run in other threads meanwhile, draw the same numbers again and again. In this block each operation
    that draws is given a generator for its device instead, which gives what the default one would after
    `torch.manual_seed(seed)`. A few fused operations for CUDA take none, and draw from the default one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if SEEDED_TAG not in func.tags or given.get("generator") is not None:
            return func(*args, **given)
        return self._drawn(func, args, given)

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        device = _device(args, kwargs)
        if device.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        own, packet = {**kwargs, "generator": self._generator(device)}, func.overloadpacket
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **own)
        if packet in LIKE_OPERATIONS:
            return LIKE_OPERATIONS[packet](torch.empty_like(*args, **kwargs), generator=own["generator"])
        if packet is ATEN.native_dropout:
            return _dropout(*args, generator=own["generator"])
        if "generator" in packet.overloads():
            return packet(*args, **own)
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device on which an operation draws: the one that it asks for, or that of its tensors."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
    first = next(tensors, None)
    return torch.device("cpu") if first is None else first.device


def _dropout(
    values: torch.Tensor, probability: float, train: bool | None, *, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """`native_dropout` by a generator: the values that are kept, scaled, and which they are."""
    if train is False:
        return values, torch.ones_like(values, dtype=torch.bool)
    kept = torch.empty_like(values, dtype=torch.bool).bernoulli_(1 - probability, generator=generator)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return values * kept * scale, kept
