"""The `async` block of a config, as every host reads it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import BLOCK_KEY, MODE_LEVELS, with_flags
from rlinf_async.core.config_keys import misplaced, nearest, shortened
from rlinf_async.loops.run_settings import RunSettings

MISSING_VALUE = "???"
"""OmegaConf's value for a key that a config requires and does not set."""


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return a config as plain data, with interpolations resolved and without keys of the value `???`."""
    # `to_container` does not raise for `???`: it returns the string, which `_present` leaves out.
    return _present(OmegaConf.to_container(cfg, resolve=True))


def _present(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _present(value) for key, value in tree.items() if value != MISSING_VALUE}
    return [_present(value) for value in tree] if isinstance(tree, list) else tree


def read_block(cfg: Mapping[str, Any] | DictConfig) -> Mapping[str, Any]:
    """Return the block as plain data, empty if absent; `train: true` and the like become blocks.

    Raises:
        ValueError: `async` is not a block or is misspelt, or its keys are outside of it.
    """
    if wrong := misplaced(cfg):
        raise ValueError(wrong)
    block = cfg.get(BLOCK_KEY)
    content: Any = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if content is not None and not isinstance(content, Mapping):
        raise ValueError(
            f"async={_written(content)} must be a block; use async.mode={_nearest_mode(content)}"
        )
    return with_flags(content or {})


def _nearest_mode(content: object) -> str:
    """The mode that the user may have meant by `async=CONTENT`."""
    # YAML reads the word `off` as False.
    if content is False:
        return "off"
    return nearest(content, MODE_LEVELS) or "full"


def _written(content: object) -> str:
    """`content` as YAML writes it."""
    return str(content).lower() if isinstance(content, bool) else shortened(content)


def unused_settings(block: Mapping[str, Any], levels: Mapping[str, bool]) -> Iterator[str]:
    """Yield a remark for each level that is off and has settings in the block; `levels` has those that are
    on as True.
    """
    for level, is_on in levels.items():
        held = block.get(level)
        if is_on or not isinstance(held, Mapping):  # a switch, null, or ??? for a value that is not given
            continue
        settings = [
            f"async.{level}.{key}={_written(value)}" for key, value in held.items() if key != "enabled"
        ]
        if settings:
            has = "has" if len(settings) == 1 else "have"
            yield f"{', '.join(settings)} {has} no effect: async.{level}.enabled is false"


def with_preset(cfg: DictConfig, mode: str) -> DictConfig:
    """Return a copy of `cfg` with a block that has only `mode`."""
    changed = copy.deepcopy(cfg)
    # Hydra's configs are in struct mode, which refuses new keys.
    with open_dict(changed):
        changed[BLOCK_KEY] = {"mode": mode}
    return changed


def write_rollout(cfg: DictConfig, settings: RunSettings) -> None:
    """Write the resolved keys of level 2 into the block of `cfg`, if that level is on."""
    if settings.asynchrony.rollout.enabled:
        with open_dict(cfg):
            cfg[BLOCK_KEY] = OmegaConf.merge(cfg[BLOCK_KEY], resolved_rollout(settings))


def resolved_rollout(settings: RunSettings) -> dict[str, Any]:
    """Return the keys of the block that level 2 reads, with every `auto` resolved."""
    rollout = {
        "shards": settings.plan.shards_per_worker,
        "max_batch_size": settings.max_batch_size,
        # `max_wait` is in seconds, the key in milliseconds.
        "max_wait_ms": settings.asynchrony.rollout.max_wait * 1000,
    }
    advanced = {
        "balance": settings.asynchrony.advanced.balance,
        "fit_shards": bool(settings.shard_choices),
    }
    return {"rollout": rollout, "advanced": advanced}
