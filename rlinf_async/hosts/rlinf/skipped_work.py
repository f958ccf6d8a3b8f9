"""The work of RLinf's simulators that `async.skip` leaves out: frames between two decisions, unless a setting
needs every frame or the class cannot leave any out; and steps after the end of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.entry_points import load_class, names_of
from rlinf_async.hosts.kit.playing import ADAPTER_GROUP

EXAMINED_SIMULATORS: frozenset[str] = frozenset({"libero", "metaworld"})
"""RLinf's environments with outputs that were shown to be the same, frame by frame and over resets, whether
ended simulators are stepped or stand still (`benchmarks/dead_work/standing.py`)."""
DECISIONS_ONLY = "decisions_only"
"""A key of `video_cfg` in RLinf's `env` sections: if true, videos show only the frame after each decision,
and others can be left out."""


def stands(section: Mapping[str, Any]) -> bool:
    """Return True if simulators of an `env` section may stand still."""
    return not section.get("env_class") and str(section.get("env_type")) in EXAMINED_SIMULATORS


def watcher(section: Mapping[str, Any]) -> str | None:
    """Return the key under an `env` section that needs every frame; None if there is none."""
    videos = _block(section, "video_cfg")
    if videos.get("save_video") and not videos.get(DECISIONS_ONLY):
        return "video_cfg.save_video"
    # RLinf's `CollectEpisode` writes the observation of every step.
    return "data_collection.enabled" if _block(section, "data_collection").get("enabled") else None


def _block(section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = section.get(name)
    return block if isinstance(block, Mapping) else {}


def with_last_frames(env_cls: type, section: Mapping[str, Any]) -> type:
    """Return `env_cls`, or a subclass of it with `draw_last_only`.

    Args:
        section: an `env` section. The class of an `env_class` is returned unchanged.
    """
    name = str(section["env_type"])
    if section.get("env_class") or name not in names_of(ADAPTER_GROUP):
        return env_cls
    adapted: type | None = load_class(ADAPTER_GROUP, name)(env_cls)
    return adapted or env_cls
