"""The policy of an inference rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.entry_points import load_class
from rlinf_async.hosts.workers.adapters import Adapters, add_adapters

MODELS_GROUP = "rlinf_async.models"
PRECISION_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Values of `vla.model.precision`; without one the builder decides."""


def build_policy(
    section: Mapping[str, Any], *, ckpt_path: str | None, seed: int, adapters: Adapters | None = None
) -> torch.nn.Module:
    """The policy of a `vla.model` section, with fresh weights drawn by `seed` or those of a state dict.

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
    """The same in a type that is given: what the learner and every inference rank begin with. `adapters` are
    added to the weights that it starts from.

    Weights that no checkpoint gives and that are not trained are never sent: all draw them alike.
    """
    torch.manual_seed(seed)
    policy: torch.nn.Module = load_class(MODELS_GROUP, section["model_type"])(
        OmegaConf.create(dict(section)), dtype
    )
    if ckpt_path:
        load_weights(policy, Path(ckpt_path))
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
        policy.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise ValueError(f"vla.ckpt_path={str(path)!r} does not fit vla.model: {error}") from error
