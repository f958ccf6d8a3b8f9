"""Reads the processes of each component, and their accelerators, from RLinf's `cluster` section before Ray
starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.config_keys import shortened

COMPONENT_NAMES = ("env", "rollout", "actor")
CLUSTER, NODES = "cluster", "node"
"""RLinf's predefined node groups: all accelerators of the cluster, and all nodes."""
ACCELERATOR, NODE = "accelerator", "node"
LARGEST_RANK = 100_000
"""The largest rank of a placement that is read: each rank takes memory here."""
MOST_NODES, MOST_GPUS_PER_NODE = 10_000, 100
"""More than any cluster of Ray has, so that a number that was mistyped is not counted out in memory."""

Resource = tuple[str, int]
"""An accelerator or a node, with its number in the cluster; or a robot, with its number in its node group."""

Assignment = tuple[tuple[Resource, ...], ...]
"""The resources of every process of a component, in order."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The nodes of a run, all with the same hardware."""

    nodes: int
    gpus: int
    """Accelerators per node; with 0, the ranks of a placement are nodes."""
    named: bool = False
    """True if the user named these machines. An assumed cluster may be larger in truth: a placement beyond it
    is then counted, not refused."""

    def __post_init__(self) -> None:
        for name, least, most in (("nodes", 1, MOST_NODES), ("gpus", 0, MOST_GPUS_PER_NODE)):
            count = getattr(self, name)
            if not least <= count <= most:
                nearest = least if count < least else most
                raise ValueError(f"{name}={count} must be from {least} to {most}; nearest: {nearest}")

    def resources(self, nodes: Iterable[int]) -> list[Resource]:
        """Return the accelerators of `nodes`; if they have none, the nodes."""
        if not self.gpus:
            return [(NODE, node) for node in nodes]
        return [(ACCELERATOR, node * self.gpus + number) for node in nodes for number in range(self.gpus)]


def world_sizes(cluster: Mapping[str, Any], machines: Machines) -> dict[str, int]:
    """Return the number of processes of each component, as RLinf counts them.

    Raises:
        ValueError: a required component is not placed, or its placement cannot be read.
    """
    return {name: len(processes) for name, processes in assignments(cluster, machines).items()}


def assignments(cluster: Mapping[str, Any], machines: Machines) -> dict[str, Assignment]:
    """Return the resources of every process of every component.

    Args:
        cluster: RLinf's `cluster` section as plain data.

    Raises:
        ValueError: as in `world_sizes`; a node group lacks a key; or a placement exceeds named `machines`.
    """
    by_group: dict[str, Assignment] = {}
    groups_by_label = _node_groups(cluster)
    for names, placement in cluster["component_placement"].items():
        groups, text = _groups_and_ranks(placement)
        resources = [
            resource for group in groups for resource in _resources_of(groups_by_label, group, machines)
        ]
        where = f"cluster.component_placement.{names}={text}"
        processes = _processes_of(str(text), len(resources), where, is_bounded=machines.named)
        # For a rank beyond an assumed cluster only the node groups are known.
        beyond = ",".join(groups)
        assigned = tuple(
            tuple(resources[rank] if rank < len(resources) else (beyond, rank) for rank in ranks)
            for ranks in processes
        )
        by_group |= {name.strip(): assigned for name in str(names).split(",")}
    missing = [name for name in COMPONENT_NAMES if name not in by_group]
    if missing:
        raise ValueError(
            f"cluster.component_placement places {sorted(by_group)} but not {', '.join(missing)}"
        )
    return by_group


def occupancy(cluster: Mapping[str, Any], machines: Machines) -> dict[str, Counter[Resource]]:
    """Return the number of processes of each component on each resource.

    A process with several resources is counted on the first one.

    Raises:
        ValueError: as in `assignments`.
    """
    return {
        name: Counter(resources[0] for resources in processes)
        for name, processes in assignments(cluster, machines).items()
    }


def _groups_and_ranks(placement: object) -> tuple[list[str], Any]:
    if not isinstance(placement, Mapping):
        return [CLUSTER], placement
    if "placement" not in placement:
        raise ValueError(
            f"cluster.component_placement has {dict(placement)}, which says no ranks; add placement, such as "
            "placement: 0-0"
        )
    groups = placement.get("node_group", CLUSTER)
    labels = groups if isinstance(groups, list) else str(groups).split(",")
    return [str(label).strip() for label in labels], placement["placement"]


def _resources_of(
    groups_by_label: Mapping[str, Mapping[str, Any]], label: str, machines: Machines
) -> list[Resource]:
    """Return the ranks of a node group in order: its robots, its accelerators, or else its nodes."""
    if label == CLUSTER:
        return machines.resources(range(machines.nodes))
    if label == NODES:
        return [(NODE, node) for node in range(machines.nodes)]
    if label not in groups_by_label:
        raise ValueError(
            f"cluster.component_placement names node_group={label!r}, but cluster.node_groups has "
            f"{', '.join(groups_by_label) or 'none'}"
        )
    group = groups_by_label[label]
    nodes = _ranks(
        str(group["node_ranks"]),
        machines.nodes,
        f"node_ranks of node group {label}",
        is_bounded=machines.named,
    )
    if group.get("hardware"):
        # Each entry of `configs` is one robot, on the node `node_rank`.
        robots = [config for config in group["hardware"]["configs"] if int(config["node_rank"]) in nodes]
        return [(f"robot of {label}", number) for number in range(len(robots))]
    return [(NODE, node) for node in nodes] if group.get("ignore_hardware") else machines.resources(nodes)


def _node_groups(cluster: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return all node groups by label; RLinf reads all, also those that no placement names."""
    groups: list[Any] = list(cluster.get("node_groups") or ())
    for number, group in enumerate(groups):
        held = group if isinstance(group, Mapping) else {}
        if held.get("label") is None or held.get("node_ranks") is None:
            raise ValueError(
                f"cluster.node_groups[{number}]={shortened(group)} must be a block with label and node_ranks,"
                " as in {label: simulators, node_ranks: 0-1}"
            )
        if str(held["label"]) in (CLUSTER, NODES):
            raise ValueError(
                f"cluster.node_groups[{number}].label={held['label']} is RLinf's own name for all "
                f"{'nodes' if held['label'] == NODES else 'accelerators'}; give the group another name"
            )
    return {str(group["label"]): group for group in groups}


def _processes_of(text: str, available: int, where: str, *, is_bounded: bool) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each process, from the parts of a placement: `resources` or `resources:processes`.

    Resources are divided evenly over processes, as in RLinf.
    """
    processes: list[tuple[int, ...]] = []
    for part in text.split(","):
        if not part.strip():
            continue
        resources_text, _, processes_text = part.partition(":")
        resources = _ranks(resources_text, available, where, is_bounded=is_bounded)
        if processes_text:
            first, last = _range(processes_text, where)
            if first != len(processes):
                raise ValueError(f"{where}: processes go on with {len(processes)}, not with {first}")
            count = last - first + 1
        else:
            count = len(resources)
        if count % len(resources) and len(resources) % count:
            raise ValueError(
                f"{where}: {count} processes and {len(resources)} resources do not divide each other"
            )
        if count >= len(resources):
            processes += [(rank,) for rank in resources for _ in range(count // len(resources))]
        else:
            each = len(resources) // count
            processes += [tuple(resources[i * each : (i + 1) * each]) for i in range(count)]
    if not processes:
        raise ValueError(f"{where!r} places no process")
    return tuple(processes)


def _ranks(text: str, available: int, where: str, *, is_bounded: bool) -> range:
    if text.strip().lower() == "all":
        return range(available)
    first, last = _range(text, where)
    if is_bounded and last >= available:
        raise ValueError(f"{where}: rank {last} is beyond the {available} that the cluster has there")
    return range(first, last + 1)


def _range(text: str, where: str) -> tuple[int, int]:
    first, _, last = (part.strip() for part in text.partition("-"))
    if not first.isdigit() or (last and not last.isdigit()) or (last and int(last) < int(first)):
        raise ValueError(f"{where}: {text!r} is not a rank, a range a-b, or all")
    if int(last or first) > LARGEST_RANK:
        raise ValueError(
            f"{where}: rank {last or first} is beyond any cluster; use ranks up to {LARGEST_RANK}"
        )
    return int(first), int(last or first)
