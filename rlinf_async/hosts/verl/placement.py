"""Places each kind of process on nodes with a certain Ray resource: `vla.placement`.

Nodes get resources at their start: `ray start --resources='{"sim": 1}'`. veRL's resource pools select nodes
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.judge.reasons import Reason

PLACEMENT_KEY = "vla.placement"
PLACED_PROCESSES = ("env", "inference", "learner")
RESOURCE_SHARE = 1e-4
"""The share of the node's resource that each process requests, as in veRL's pools: small, so that it suffices
for all."""
OWN_RESOURCES_KEY = "ray_kwargs.ray_init.resources"
"""The key of the resources of a Ray cluster that a run on one node starts itself."""


def resource_of(cfg: Mapping[str, Any], component: str) -> str | None:
    """Return the resource that a component's nodes must have; None: any nodes."""
    name = lookup(cfg, f"{PLACEMENT_KEY}.{component}")
    return None if name is None else str(name)


def resources(cfg: Mapping[str, Any], component: str) -> dict[str, float]:
    """Return the Ray resources that a component's process requests besides CPUs and accelerators."""
    name = resource_of(cfg, component)
    return {} if name is None else {name: RESOURCE_SHARE}


def starts_ray(cfg: Mapping[str, Any]) -> bool:
    """Return True if the run starts a Ray cluster of one node itself."""
    return not lookup(cfg, "ray_kwargs.ray_init.address") and lookup(cfg, "trainer.nnodes") == 1


def placement_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons against a placement that are known before Ray starts."""
    if resource_of(cfg, "learner") is not None and lookup(cfg, "trainer.device") == "cpu":
        yield Reason(
            f"{PLACEMENT_KEY}.learner={resource_of(cfg, 'learner')} does not support trainer.device=cpu: "
            "veRL's pools request it only together with an accelerator; remove it",
            f"~{PLACEMENT_KEY}.learner",
        )
    if not starts_ray(cfg):
        return
    own_resources = lookup(cfg, OWN_RESOURCES_KEY) or {}
    for component in PLACED_PROCESSES:
        name = resource_of(cfg, component)
        if name is not None and name not in own_resources:
            yield Reason(
                f"{PLACEMENT_KEY}.{component}={name} names a resource that the Ray of this run, on one "
                f"node, would not have; remove it, add it to {OWN_RESOURCES_KEY}, or name a cluster by "
                "ray_kwargs.ray_init.address",
                f"~{PLACEMENT_KEY}.{component}",
            )


def too_small(
    cfg: Mapping[str, Any], plan: ShardPlan, nodes: Sequence[Mapping[str, Any]], *, on_gpu: bool
) -> Iterator[str]:
    """Yield a sentence for each resource with too few places, on its nodes, for the processes placed there.

    Args:
        nodes: the cluster's nodes, as from `ray.nodes`.
    """
    numbers = {"env": plan.env_workers, "inference": plan.inference_ranks, "learner": plan.learner_ranks}
    for name in dict.fromkeys(filter(None, (resource_of(cfg, each) for each in PLACED_PROCESSES))):
        components = [each for each in PLACED_PROCESSES if resource_of(cfg, each) == name]
        # Ray also lists nodes that have left.
        have = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get(name)]
        need = {"CPU": sum(numbers[each] for each in components)}
        if on_gpu:
            need["GPU"] = sum(numbers[each] for each in components if each != "env")
        for kind, count in need.items():
            total = sum(resources.get(kind, 0) for resources in have)
            if total < count:
                keys = " and ".join(f"{PLACEMENT_KEY}.{each}={name}" for each in components)
                yield (
                    f"{keys} needs {count} {kind}, and the {len(have)} nodes with that resource have "
                    f"{total:g}; start nodes of Ray with --resources='{{\"{name}\": 1}}', or remove the key"
                )


def in_words(cfg: Mapping[str, Any]) -> str:
    """Return, as text, the components that are restricted to certain nodes; empty if none is."""
    names = {each: resource_of(cfg, each) for each in PLACED_PROCESSES}
    return ", ".join(f"{each} on nodes with {name}" for each, name in names.items() if name is not None)
