"""A config of veRL as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.core.names import nearest
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.async_block import read_block

TRAINER_MODE = "vla_async"
"""The name of our trainer in veRL's registry."""
PLATFORM_VARIABLE = "VERL_PLATFORM"
"""It tells veRL which kind of accelerator there is, before it is imported."""
VERLS_OWN = ("sync", "colocate_async", "separate_async")
"""The names of veRL's own trainers there."""


def is_verls(config: object) -> bool:
    """Return True if `config` is one of veRL's, for any of its trainers."""
    if not isinstance(config, DictConfig):
        return False
    return all(isinstance(config.get(name), DictConfig) for name in ("trainer", "actor_rollout_ref"))


def another_mode(config: DictConfig, *, needs_ours: bool = False) -> str:
    """Why the trainer that a config of veRL's asks for is not the one that it needs; empty if it is.

    Ours is needed by an `async` block with a level on, and wherever our own commands are to train.
    """
    mode = OmegaConf.select(config, "trainer.v1.trainer_mode")
    if mode == TRAINER_MODE:
        return ""
    said = f"trainer.v1.trainer_mode={mode!r}"
    if mode not in VERLS_OWN and nearest(mode, [TRAINER_MODE], cutoff=0.8):
        return f"{said} is no trainer of veRL; did you mean {TRAINER_MODE!r}?"
    if AsyncConfig.from_mapping(read_block(config)).active:
        return f"{said} reads no async block; use trainer.v1.trainer_mode={TRAINER_MODE}, or async.mode=off"
    if needs_ours:
        return (
            f"{said} is veRL's own loop, which its own commands start; use "
            f"trainer.v1.trainer_mode={TRAINER_MODE}"
        )
    return ""


def whole(cfg: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """The whole number of at least 1 at a dotted key.

    Raises:
        ValueError: it is none.
    """
    value = lookup(cfg, key)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"{key} is missing; set it to a whole number of at least 1")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value!r} must be a whole number of at least 1; nearest: 1")
    return value
