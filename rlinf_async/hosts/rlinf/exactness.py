"""Whether each level computes what RLinf's synchronous loop would, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.hosts.exactness import rollout_exactness, streamer_exactness, train_exactness
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
            train=cfg["env"]["train"],
        ),
        "streamer": streamer_exactness(
            settings,
            more=list(_means_of_micro_batches(cfg)),
        ),
    }


def _means_of_micro_batches(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Parts of RLinf's loss that are divided before the batch is complete."""
    algorithm, train = cfg["algorithm"], cfg["env"]["train"]
    masked = not train.get("auto_reset") and not train.get("ignore_terminations")
    if algorithm.get("entropy_bonus", 0) and masked:
        yield "the entropy bonus is a mean over the valid samples of each micro-batch"
    if algorithm.get("filter_rewards", False) and not masked:
        yield "filtered losses are means over the valid samples of each micro-batch"
