"""RLinf's worker groups: their reports of failures, and workers that are started on other nodes.

A group prints the error and sends SIGUSR1 to its own process, once for every call that has failed. RLinf's
handler then kills all actors, leaves Ray and exits, whatever the driver is doing. Here both become one error.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import ray

from rlinf_async.ray_runtime.cluster.termination import TERMINATION

GROUP_MODULE = "rlinf.scheduler.worker.worker_group"


class PrintedWords:
    """Collects the messages of the groups, in the place of `print`."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def note(self, text: object = "", *_: object, **__: object) -> None:
        self._messages.append(str(text))

    def first(self) -> str | None:
        """The first failure in a line: whose call it was, and the last line of its error; None before."""
        if not self._messages:
            return None
        # The words of RLinf's `worker_group.py`, `_wait_for_results` (0.3 and main), as is the prefix below.
        call, _, error = self._messages[0].partition(": exception is ")
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return (
            f"{call.removeprefix('Exception occurred while running ')}: {lines[-1] if lines else 'it died'}"
        )


def hear_worker_groups() -> None:
    """Have worker groups that fail raise one RuntimeError in the driver; called once its cluster is up."""
    words = PrintedWords()
    # The name is looked up in the module first; an RLinf that says it otherwise says it as ever.
    vars(import_module(GROUP_MODULE))["print"] = words.note
    TERMINATION.take_for_failure(signal.SIGUSR1, words.first)


@dataclass(frozen=True)
class StartedWorker:
    """A worker, by the call of RLinf's that has started it."""

    allocate: Callable[..., Any]
    """`Cluster.allocate` of the cluster, and its worker class."""
    cluster: Any
    options: dict[str, Any]

    @property
    def node(self) -> int:
        """RLinf's rank of its node."""
        return int(self.options["node_rank"])

    def on(self, node: int) -> StartedWorker:
        """The same worker on another node."""
        # RLinf's worker reads its node from the variable, its placement from the option: both have to agree.
        variables = {**self.options["env_vars"], "CLUSTER_NODE_RANK": str(node)}
        return replace(self, options={**self.options, "node_rank": node, "env_vars": variables})


class StartedWorkers:
    """The workers of a group by rank, each of which can be started again on another node."""

    def __init__(self) -> None:
        self._workers: dict[int, StartedWorker] = {}

    def start(self, allocate: Callable[..., Any], cluster: Any, **options: Any) -> Any:
        """Have RLinf start a worker, and remember how; its handle."""
        return self._start(StartedWorker(allocate, cluster, options))

    def hand_over(self) -> StartedWorkers:
        """Return the workers so far, which belong to one run; those of the next run are noted anew."""
        own = StartedWorkers()
        own._workers, self._workers = self._workers, {}
        return own

    def start_elsewhere(self, rank: int) -> tuple[Any, str] | None:
        """Start the worker of `rank` on the node that has the fewest, of those that may hold it; its handle
        and the address of the node. None if there is no such node.
        """
        lost = self._workers[rank]
        nodes = [node for node in nodes_alike(lost) if node != lost.node]
        if not nodes:
            return None
        crowd = Counter(worker.node for worker in self._workers.values())
        moved = lost.on(min(nodes, key=lambda node: (crowd[node], node)))
        return self._start(moved), str(lost.cluster.get_node_info(moved.node).node_ip)

    def _start(self, worker: StartedWorker) -> Any:
        self._workers[int(worker.options["worker_rank"])] = worker
        # The options are the parameters of RLinf's `Cluster.allocate`, by their names.
        return worker.allocate(worker.cluster, **worker.options)


def nodes_alike(worker: StartedWorker) -> list[int]:
    """Nodes of the run that live, by rank: those of the worker's node group that have what its own node had,
    as RLinf has numbered the accelerators and robots that the worker uses.
    """
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    had = _hardware(worker.cluster.get_node_info(worker.node))
    group = worker.cluster.get_node_group(worker.options["node_group_label"])
    return [node.node_rank for node in group.nodes if node.ray_id in alive and _hardware(node) == had]


def _hardware(node: Any) -> list[tuple[str, int]]:
    return [(resource.type, resource.count) for resource in node.hardware_resources]


ENV_WORKERS = StartedWorkers()
"""The env workers of a run that is starting, until its runner takes them over."""
