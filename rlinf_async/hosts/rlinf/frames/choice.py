"""Which environments leave out frames: what looks at all of them, and who can leave them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def frame_remarks(cfg: Mapping[str, Any], *, steps: int) -> Iterator[str]:
    """Yield what `async.skip.frames` leaves out for training; `steps` are those of a decision."""
    section = cfg["env"]["train"]
    name, key = str(section["env_type"]), watcher(section)
    if steps == 1 or section.get("env_class"):
        return
    unseen = f"{steps - 1} of {steps} frames of a decision"
    if name not in names_of(ADAPTER_GROUP):
        yield f"async.skip.frames leaves nothing out: how {name} draws is not known, and it draws every step"
    elif key == "video_cfg.save_video":
        yield (
            f"env.train.{key}=true has {unseen} drawn for a video alone; env.train.{key}=false leaves them "
            f"out, and +env.train.{DECISIONS_ONLY}=true does, with a video of decisions"
        )
    elif key:
        yield f"env.train.{key}=true has {unseen} drawn for a recorder alone; with false they are left out"
    else:
        yield f"async.skip.frames leaves out {unseen}, at most: what {name} shows nobody is not drawn"
