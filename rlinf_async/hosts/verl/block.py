"""A config of veRL as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from rlinf_async.core.nested import lookup

MODE = "vla_async"
"""Our trainer's name in veRL's registry."""


def is_ours(config: object) -> bool:
    """Whether `config` asks veRL for our trainer."""
    if not isinstance(config, DictConfig) or "trainer" not in config:
        return False
    v1 = config.trainer.get("v1") if isinstance(config.trainer, DictConfig) else None
    return isinstance(v1, DictConfig) and v1.get("trainer_mode") == MODE


def value_at(cfg: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where it is absent or missing."""
    value = lookup(cfg, key)
    return None if value == "???" else value


def whole(cfg: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """The whole number of at least 1 at a dotted key.

    Raises:
        ValueError: it is none.
    """
    value = value_at(cfg, key)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"{key} is missing; set it to a whole number of at least 1")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value!r} must be a whole number of at least 1; nearest: 1")
    return value
