"""Starts workers of RLinf on other nodes than RLinf has placed them on, once those are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray


@dataclass(frozen=True)
class Started:
    """A worker, by the call of RLinf's that has started it."""

    allocate: Callable[..., Any]
    """`Cluster.allocate` of the cluster, and its worker class."""
    cluster: Any
    options: dict[str, Any]

    @property
    def node(self) -> int:
        """RLinf's rank of its node."""
        return int(self.options["node_rank"])

    def on(self, node: int) -> Started:
        """The same worker on another node."""
        variables = {**self.options["env_vars"], "CLUSTER_NODE_RANK": str(node)}
        return replace(self, options={**self.options, "node_rank": node, "env_vars": variables})


class StartedWorkers:
    """The workers of a group by rank, each of which can be started again on another node."""

    def __init__(self) -> None:
        self._started: dict[int, Started] = {}

    def start(self, allocate: Callable[..., Any], cluster: Any, **options: Any) -> Any:
        """Have RLinf start a worker, and remember how; its handle."""
        return self._start(Started(allocate, cluster, options))

    def again(self, rank: int) -> tuple[Any, str] | None:
        """Start the worker of `rank` on the node that has the fewest, of those that may hold it; its handle
        and the address of the node. None if there is no such node.
        """
        lost = self._started[rank]
        nodes = [node for node in nodes_alike(lost) if node != lost.node]
        if not nodes:
            return None
        crowd = Counter(started.node for started in self._started.values())
        moved = lost.on(min(nodes, key=lambda node: (crowd[node], node)))
        return self._start(moved), str(lost.cluster.get_node_info(moved.node).node_ip)

    def _start(self, started: Started) -> Any:
        self._started[int(started.options["worker_rank"])] = started
        return started.allocate(started.cluster, **started.options)


def nodes_alike(started: Started) -> list[int]:
    """Nodes of the run that live, by rank: those of the worker's node group that have what its own node had,
    as RLinf has numbered the accelerators and robots that the worker uses.
    """
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    had = _hardware(started.cluster.get_node_info(started.node))
    group = started.cluster.get_node_group(started.options["node_group_label"])
    return [node.node_rank for node in group.nodes if node.ray_id in alive and _hardware(node) == had]


def _hardware(node: Any) -> list[tuple[str, int]]:
    return [(resource.type, resource.count) for resource in node.hardware_resources]


ENV_WORKERS = StartedWorkers()
"""The env workers of the present run."""
