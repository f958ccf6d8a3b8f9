"""The `async` block of a config, as every host reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.loops.run_settings import RunSettings

KEY = "async"


def read_block(cfg: Mapping[str, Any] | DictConfig) -> Mapping[str, Any]:
    """The block as it is written, as plain data; empty where there is none.

    Raises:
        ValueError: it is no block.
    """
    block = cfg.get(KEY)
    plain: Any = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if plain is not None and not isinstance(plain, Mapping):
        raise ValueError(f"async={plain!r} must be a block; nearest: async.mode={plain!r}")
    return plain or {}


def resolved_rollout(settings: RunSettings) -> dict[str, Any]:
    """`async.rollout` with every `auto` resolved, while level 2 is on."""
    return {
        "shards": settings.plan.shards_per_worker,
        "max_batch_size": settings.max_batch_size,
        "max_wait_ms": settings.asynchrony.rollout.max_wait * 1000,
    }
