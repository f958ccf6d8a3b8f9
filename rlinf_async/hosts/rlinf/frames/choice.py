"""Which environments leave out frames: what looks at all of them, and who can leave them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.entry_points import load_class, names_of
from rlinf_async.hosts.kit.frames import ADAPTER_GROUP

DECISIONS_ONLY = "video_cfg.decisions_only"
"""A key of RLinf's `env` sections: their video shows decisions alone, and other frames may be left out."""


def watcher(section: Mapping[str, Any]) -> str | None:
    """The key, under an `env` section, that has every frame looked at; None if none does."""
    if lookup(section, "video_cfg.save_video") and not lookup(section, DECISIONS_ONLY):
        return "video_cfg.save_video"
    # RLinf's `CollectEpisode` writes what every step shows.
    return "data_collection.enabled" if lookup(section, "data_collection.enabled") else None


def with_last_frames(env_cls: type, section: Mapping[str, Any]) -> type:
    """`env_cls`, or a subclass that can `draw_last_only`.

    Args:
        section: an `env` section. Environments of its `env_class` draw as they say themselves.
    """
    name = str(section["env_type"])
    if section.get("env_class") or name not in names_of(ADAPTER_GROUP):
        return env_cls
    adapted: type | None = load_class(ADAPTER_GROUP, name)(env_cls)
    return adapted or env_cls
