"""The policy that inference ranks act with and learner ranks train, and the adapters that it may be given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.entry_points import MODELS_GROUP, load_class
from rlinf_async.hosts.workers.settings import Adapters

VALUE_HEAD = "value_head"
"""The module of a policy that estimates values; adapters leave it alone, and it is trained whole."""
PRECISION_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Values of `vla.model.precision`; without one the builder decides."""


def build_policy(
    section: Mapping[str, Any], *, ckpt_path: str | None, seed: int, adapters: Adapters | None = None
) -> torch.nn.Module:
    """Build the policy of a `vla.model` section, with fresh weights drawn by `seed` or those of a state dict.

    Raises:
        ValueError: no package provides `model_type`, or the state dict is another policy's.
    """
    precision = section.get("precision")
    if precision is not None and precision not in PRECISION_TYPES:
        raise ValueError(
            f"vla.model.precision={precision!r} must be one of {', '.join(PRECISION_TYPES)}, or null"
        )
    dtype = None if precision is None else PRECISION_TYPES[precision]
    return make_policy(section, dtype, ckpt_path=ckpt_path, seed=seed, adapters=adapters)


def make_policy(
    section: Mapping[str, Any],
    dtype: torch.dtype | None,
    *,
    ckpt_path: str | None,
    seed: int,
    adapters: Adapters | None = None,
) -> torch.nn.Module:
    """Build the same in the type `dtype`: the learner and every inference rank begin with it. `adapters` are
    added to the weights that it starts from.

    Weights that no checkpoint gives and that are not trained are never sent: all draw them alike.
    """
    torch.manual_seed(seed)
    policy: torch.nn.Module = load_class(MODELS_GROUP, section["model_type"])(
        OmegaConf.create(dict(section)), dtype
    )
    if ckpt_path:
        load_weights(policy, Path(ckpt_path))
    # After the weights: adapters rename the layers that they wrap, and a state dict would not fit any more.
    if adapters is not None:
        add_adapters(policy, adapters)
    return policy


def load_weights(policy: torch.nn.Module, path: Path) -> None:
    """Write the state dict in the file `path` into `policy`.

    Raises:
        ValueError: there is no such file, or it does not fit.
    """
    if not path.is_file():
        raise ValueError(f"vla.ckpt_path={str(path)!r} is no file; give one with a state dict, or null")
    try:
        # weights_only: a pickle can run code of whoever has made the file.
        policy.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise ValueError(f"vla.ckpt_path={str(path)!r} does not fit vla.model: {error}") from error


def add_adapters(policy: torch.nn.Module, adapters: Adapters) -> None:
    """Give `policy` adapters, which change nothing until they are trained, and train nothing else of it but
    its value head.

    Raises:
        ValueError: none of its layers is a target.
    """
    # A run without adapters does without this package.
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    targets = adapters.targets
    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=[name for name, _ in policy.named_modules() if _is_exempt(name, adapters.excluded)],
        bias="none",
    )
    inject_adapter_in_model(config, policy)
    for module in policy.modules():
        if isinstance(module, BaseTunerLayer):
            # FSDP2 is told of its units by the names of classes, and peft's are those of the layers within.
            module.__class__ = type(f"Adapted{type(module).__name__}", (type(module),), {})
    frozen_type = next((p.dtype for p in policy.parameters() if not p.requires_grad), torch.float32)
    for name, parameter in policy.named_parameters():
        if VALUE_HEAD in name.split("."):
            parameter.requires_grad_(True)
        elif parameter.requires_grad:
            parameter.data = parameter.data.to(frozen_type)  # FSDP2 shards what has one type


def _is_exempt(name: str, excluded: str | Sequence[str] | None) -> bool:
    """Return True if a module is in a value head, or excluded: by a pattern, or by the end of its name."""
    if VALUE_HEAD in name.split("."):
        return True
    if isinstance(excluded, str):
        return re.fullmatch(excluded, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in excluded or ())
