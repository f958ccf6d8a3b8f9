"""Whether the members of a group can start in one scene, if a config wants that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.stock_scenes import has_stock_scenes

OWN_SCENES = "async.advanced.shared_group_scene=false"


def scene_reasons(train: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason if members of a group are to share a scene, and the environments of the section `train`
    have none to share.
    """
    if not asynchrony.advanced.shared_group_scene or has_stock_scenes(train):
        return
    why = "scenes of LIBERO alone are drawn from a seed, at resets of whole shards"
    auto_reset = ", and env.train.auto_reset=true" if train.get("auto_reset") else ""
    yield Reason(
        f"async.advanced.shared_group_scene=true does not go with env.train.env_type={train.get('env_type')}"
        f"{auto_reset}: {why}; use {OWN_SCENES}",
        OWN_SCENES,
    )
