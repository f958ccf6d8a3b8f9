"""Low-rank adapters on the linear layers of a policy, which are trained in the place of its weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

VALUE_HEAD = "value_head"
"""The module of a policy that estimates values; adapters leave it alone, and it is trained whole."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Adapters of `rank` on the layers `targets`, in the words of peft, except on `excluded`."""

    rank: int
    alpha: int
    targets: str | Sequence[str] = ALL_LINEAR
    excluded: str | Sequence[str] | None = None


def add_adapters(policy: nn.Module, adapters: Adapters) -> None:
    """Give `policy` adapters, which change nothing until they are trained, and train nothing else of it but
    its value head.

    Raises:
        ValueError: none of its layers is a target.
    """
    # Settings hold adapters, and a run is explained without either of these.
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        target_modules=_listed(adapters.targets),
        exclude_modules=[name for name, _ in policy.named_modules() if _is_excluded(name, adapters.excluded)],
        bias="none",
    )
    inject_adapter_in_model(config, policy)
    for module in policy.modules():
        if isinstance(module, BaseTunerLayer):
            # FSDP2 is told of its units by the names of classes, and peft's are those of the layers within.
            module.__class__ = type(f"Adapted{type(module).__name__}", (type(module),), {})
    stored = next((p.dtype for p in policy.parameters() if not p.requires_grad), torch.float32)
    for name, parameter in policy.named_parameters():
        if VALUE_HEAD in name.split("."):
            parameter.requires_grad_(True)
        elif parameter.requires_grad:
            parameter.data = parameter.data.to(stored)  # FSDP2 shards what has one type


def _listed(names: str | Sequence[str]) -> str | list[str]:
    return names if isinstance(names, str) else list(names)


def _is_excluded(name: str, excluded: str | Sequence[str] | None) -> bool:
    """Return True if a module is in a value head, or excluded: by a pattern, or by the end of its name."""
    if VALUE_HEAD in name.split("."):
        return True
    if isinstance(excluded, str):
        return re.fullmatch(excluded, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in excluded or ())
