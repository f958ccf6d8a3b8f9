"""Notes on levels that are on and have little or nothing to do, and on accelerators that parts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.sharding import VECTORISED_SIMULATORS
from rlinf_async.hosts.rlinf.offload import overlap
from rlinf_async.hosts.rlinf.placement import Machines, occupancy
from rlinf_async.hosts.rlinf.settings import RLinfSettings

UNTRAINED_CRITICS = frozenset({"gr00t"})
"""Models in which RLinf's `get_model`, when it adds adapters, does not find the critic that it unfreezes."""

COMPONENT_WORDS = {"actor": "learner", "rollout": "inference", "env": "environments"}
"""RLinf's components, in the words of a reader."""


def effects(cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines) -> Iterator[str]:
    """A remark for each level of a run, and for each setting, that does less than one might expect."""
    levels, plan = settings.asynchrony, settings.plan
    if levels.streamer.enabled and not settings.streams:
        yield _waiting(settings)
    simulator = str(cfg["env"]["train"]["env_type"])
    vectorised = simulator in VECTORISED_SIMULATORS and plan.shards_per_worker == 1
    if vectorised and levels.off_policy and settings.update_epoch > 1:
        yield _gain(simulator, settings)
    if levels.rollout.enabled and plan.shards == 1:
        yield "level 2 has one shard in all, and changes nothing"
    elif levels.rollout.enabled and plan.shards_per_worker == 1:
        yield "level 2 has one shard per env worker: env workers do not wait for each other, and that is all"
    yield from _untrained_critic(cfg["actor"]["model"], str(cfg["algorithm"]["adv_type"]))
    together = collocated(cfg, machines)
    if len(together) > 1 and overlap(levels):
        yield (
            f"{', '.join(together[:-1])} and {together[-1]} are placed together and share the compute there: "
            "what the levels overlap fills gaps, and does not run at full speed twice"
        )
    if cfg["rollout"].get("enable_cuda_graph", False):
        yield (
            f"CUDA graphs are captured for batches of {settings.buckets[0]}, to which smaller ones are "
            "padded; workers without CUDA capture none"
        )


def _waiting(settings: RLinfSettings) -> str:
    """Say what level 3 does where gradients wait for the whole batch, and what would have them stream."""
    pieces, ahead = settings.plan.pieces_per_rank, settings.pieces_anchored_ahead
    if pieces == 1:
        return "level 3 does nothing: all that a learner rank trains in a step comes in one piece"
    does = (
        f"level 3 streams the anchor and its values, for up to {ahead} of {pieces} pieces before the last "
        "has come, which is exact"
        if ahead
        else "level 3 streams nothing"
    )
    return (
        f"{does}: with normalisation deferred gradients wait for the whole batch; "
        "async.advanced.normalization=running streams them"
    )


def _untrained_critic(model: Mapping[str, Any], advantage: str) -> Iterator[str]:
    if model.get("is_lora") and model["model_type"] in UNTRAINED_CRITICS and advantage == "gae":
        yield (
            f"with actor.model.is_lora RLinf does not train the critic of {model['model_type']}: advantages "
            "are estimated with values of the weights that a run begins with"
        )


def _gain(simulator: str, settings: RLinfSettings) -> str:
    """Say what a run with several update epochs gains where one simulator holds all that a worker steps."""
    return (
        f"{simulator} is not split, and collects the next batch while the learner makes "
        f"{settings.update_epoch} update epochs of this one: a step takes the longer of the two, and no "
        "longer their sum"
    )


def collocated(cfg: Mapping[str, Any], machines: Machines) -> list[str]:
    """Return those of learner, inference and environments that share an accelerator (or node) with
    another.
    """
    places = occupancy(cfg["cluster"], machines)
    return [
        word
        for name, word in COMPONENT_WORDS.items()
        if any(places[name].keys() & places[other].keys() for other in COMPONENT_WORDS if other != name)
    ]
