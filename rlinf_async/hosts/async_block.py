"""The `async` block of a config, as every host reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.loops.run_settings import RunSettings

KEY = "async"


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A config without interpolations; what is missing is the text `???`, as OmegaConf has it."""
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


def read_block(cfg: Mapping[str, Any] | DictConfig) -> Mapping[str, Any]:
    """The block as it is written, as plain data; empty where there is none.

    Raises:
        ValueError: it is no block.
    """
    block = cfg.get(KEY)
    content: Any = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if content is not None and not isinstance(content, Mapping):
        raise ValueError(f"async={content!r} must be a block; nearest: async.mode={content!r}")
    return content or {}


def resolved_rollout(settings: RunSettings) -> dict[str, Any]:
    """`async.rollout` with every `auto` resolved, while level 2 is on."""
    return {
        "shards": settings.plan.shards_per_worker,
        "max_batch_size": settings.max_batch_size,
        "max_wait_ms": settings.asynchrony.rollout.max_wait * 1000,
    }
