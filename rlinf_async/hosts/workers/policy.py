"""Builds the policy of inference ranks and learner ranks, with adapters if the run trains some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.entry_points import MODELS_GROUP, load_class
from rlinf_async.hosts.policy_contract import checked_policy, keeping_defaults
from rlinf_async.hosts.workers.settings import Adapters

VALUE_HEAD = "value_head"
"""The module of a policy that estimates values; it has no adapters, and all of its weights are trained."""
PRECISION_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Values of `vla.model.precision`; without one the policy's builder chooses."""


def build_policy(
    section: Mapping[str, Any], *, ckpt_path: str | None, seed: int, adapters: Adapters | None = None
) -> torch.nn.Module:
    """Build the policy of a `vla.model` section, with weights initialised by `seed` or read from a state
    dict.

    Raises:
        ValueError: no package provides `model_type`, or the state dict does not fit the policy.
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
    """Build the policy in the type `dtype`, then add `adapters`; learner ranks and inference ranks start from
    it.

    Frozen weights are never sent: without a checkpoint, every process initialises the same ones.
    """
    torch.manual_seed(seed)
    with keeping_defaults():
        build = load_class(MODELS_GROUP, section["model_type"])
        policy = checked_policy(build(OmegaConf.create(dict(section)), dtype))
    if ckpt_path:
        load_weights(policy, Path(ckpt_path))
    # After the weights are loaded: adapters rename the layers that they wrap, so that no state dict fits.
    if adapters is not None:
        add_adapters(policy, adapters)
    return policy


def load_weights(policy: torch.nn.Module, path: Path) -> None:
    """Write the state dict in the file `path` into `policy`.

    Raises:
        ValueError: there is no such file, or its state dict does not fit.
    """
    if not path.is_file():
        raise ValueError(f"vla.ckpt_path={str(path)!r} is no file; give one with a state dict, or null")
    try:
        # weights_only: unpickling could run code from the file.
        policy.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise ValueError(f"vla.ckpt_path={str(path)!r} does not fit vla.model: {error}") from error


def add_adapters(policy: torch.nn.Module, adapters: Adapters) -> None:
    """Add adapters to `policy`, and freeze its other parameters except those of the value head.

    The policy's outputs are unchanged until the adapters are trained.

    Raises:
        ValueError: no layer of the policy is a target.
    """
    # Imported here, as runs without adapters do not need peft.
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
            # FSDP2's units are chosen by class name, and peft's classes have the names of the layers inside.
            module.__class__ = type(f"Adapted{type(module).__name__}", (type(module),), {})
    frozen_type = next((p.dtype for p in policy.parameters() if not p.requires_grad), torch.float32)
    for name, parameter in policy.named_parameters():
        if VALUE_HEAD in name.split("."):
            parameter.requires_grad_(True)
        elif parameter.requires_grad:
            parameter.data = parameter.data.to(frozen_type)  # FSDP2 needs one type per unit


def _is_exempt(name: str, excluded: str | Sequence[str] | None) -> bool:
    """Return True if a module is in a value head, or excluded by a pattern or by the end of its name."""
    if VALUE_HEAD in name.split("."):
        return True
    if isinstance(excluded, str):
        return re.fullmatch(excluded, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in excluded or ())
