"""Tells for each level if it computes what RLinf's synchronous loop would, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.hosts.exactness import rollout_exactness, streamer_exactness, train_exactness
from rlinf_async.hosts.rlinf import entropy
from rlinf_async.hosts.rlinf.chance import shared_chance
from rlinf_async.hosts.rlinf.settings import RLinfSettings


def exactness(cfg: Mapping[str, Any], settings: RLinfSettings) -> dict[str, str]:
    """`exact`, `approximate (why; what is exact)` or `off`, for each level."""
    return {
        "train": train_exactness(settings.asynchrony),
        "rollout": rollout_exactness(
            settings.asynchrony,
            model=str(cfg["actor"]["model"]["model_type"]),
            shares=shared_chance(cfg),
        ),
        "streamer": streamer_exactness(
            settings,
            more=list(_means_of_micro_batches(cfg)),
        ),
    }


def _means_of_micro_batches(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Parts of RLinf's loss that are divided before the batch is complete."""
    yield from entropy.in_parts(cfg)
    if cfg["algorithm"].get("filter_rewards", False) and not entropy.is_masked(cfg):
        yield "filtered losses are means over the valid samples of each micro-batch"
