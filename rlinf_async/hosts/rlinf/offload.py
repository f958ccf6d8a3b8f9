"""RLinf's offloading: a part leaves its accelerator while another works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup

OFFLOAD_KEYS = {
    "actor.enable_offload": "the learner works while rollouts go on",
    "rollout.enable_offload": "inference goes on while the learner works",
    "env.train.enable_offload": "simulators go on while the learner works",
    "env.eval.enable_offload": "evaluation runs beside the rollouts for training",
}
"""RLinf's keys that move a part off its accelerator while another works, and the reason against each."""


def overlap(asynchrony: AsyncConfig) -> bool:
    """Return True if training and rollouts go on at the same time."""
    return asynchrony.train.enabled or asynchrony.streamer.enabled


def offloading(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    """Return True if a run of `cfg`, RLinf's config as plain data, has to take turns."""
    return not overlap(asynchrony) and any(lookup(cfg, key) for key in OFFLOAD_KEYS)
