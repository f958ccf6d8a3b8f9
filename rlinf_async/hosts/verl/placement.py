"""Places each kind of process on nodes with a certain Ray resource: `vla.placement`.

Nodes get resources at their start: `ray start --resources='{"sim": 1}'`. veRL's resource pools select nodes
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.verl.view import VerlView

PLACEMENT_KEY = "vla.placement"
PLACED_PROCESSES = ("env", "inference", "learner")
RESOURCE_SHARE = 1e-4
"""The share of the node's resource that each process requests, as in veRL's pools: small, so that it suffices
for all."""
OWN_RESOURCES_KEY = "ray_kwargs.ray_init.resources"
"""The key of the resources of a Ray cluster that a run on one node starts itself."""


def resource_of(view: VerlView, component: str) -> str | None:
    """Return the resource that a component's nodes must have; None: any nodes."""
    name = view.placement.get(component)
    return None if name is None else str(name)


def resources(view: VerlView, component: str) -> dict[str, float]:
    """Return the Ray resources that a component's process requests besides CPUs and accelerators."""
    name = resource_of(view, component)
    return {} if name is None else {name: RESOURCE_SHARE}


def placement_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield the reasons against a placement that are known before Ray starts."""
    if resource_of(view, "learner") is not None and view.device == "cpu":
        yield Reason(
            f"{PLACEMENT_KEY}.learner={resource_of(view, 'learner')} does not support trainer.device=cpu: "
            "veRL's pools request it only together with an accelerator; remove it",
            f"~{PLACEMENT_KEY}.learner",
        )
    if not view.starts_ray:
        return
    for component in PLACED_PROCESSES:
        name = resource_of(view, component)
        if name is not None and name not in view.ray_resources:
            yield Reason(
                f"{PLACEMENT_KEY}.{component}={name} names a resource that the Ray of this run, on one "
                f"node, would not have; remove it, add it to {OWN_RESOURCES_KEY}, or name a cluster by "
                "ray_kwargs.ray_init.address",
                f"~{PLACEMENT_KEY}.{component}",
            )


def too_small(
    view: VerlView, plan: ShardPlan, nodes: Sequence[Mapping[str, Any]], *, on_gpu: bool
) -> Iterator[str]:
    """Yield a sentence for each resource with too few places, on its nodes, for the processes placed there.

    Args:
        nodes: the cluster's nodes, as from `ray.nodes`.
    """
    numbers = {"env": plan.env_workers, "inference": plan.inference_ranks, "learner": plan.learner_ranks}
    for name in dict.fromkeys(filter(None, (resource_of(view, each) for each in PLACED_PROCESSES))):
        components = [each for each in PLACED_PROCESSES if resource_of(view, each) == name]
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


def in_words(view: VerlView) -> str:
    """Return, as text, the components that are restricted to certain nodes; empty if none is."""
    names = {each: resource_of(view, each) for each in PLACED_PROCESSES}
    return ", ".join(f"{each} on nodes with {name}" for each, name in names.items() if name is not None)
