"""Failures of RLinf's worker groups in the driver: their reports, the exit status, and workers that are
started again on other nodes.

For every failed call, a group prints the error and sends SIGUSR1 to its own process. RLinf's handler then
kills all actors, leaves Ray and exits, whatever the driver is doing. Here the first failure becomes one
error.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import ray

from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.termination import TERMINATION

GROUP_MODULE = "rlinf.scheduler.worker.worker_group"


class PrintedErrors:
    """Collects the error messages of worker groups, instead of `print`."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def note(self, text: object = "", *_: object, **__: object) -> None:
        self._messages.append(str(text))

    def first(self) -> str | None:
        """Return the first failure as a line: the call, and the last line of its error; None without a
        failure.
        """
        if not self._messages:
            return None
        # This separator and the prefix below are those of `_wait_for_results` in RLinf's `worker_group.py`
        # (0.3 and main).
        call, _, error = self._messages[0].partition(": exception is ")
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return (
            f"{call.removeprefix('Exception occurred while running ')}: {lines[-1] if lines else 'it died'}"
        )


def hear_worker_groups() -> None:
    """Have failed worker groups raise one RuntimeError in the driver; called once its cluster is up."""
    errors = PrintedErrors()
    # A module global hides the built-in `print`; an RLinf that reports otherwise is not affected.
    vars(import_module(GROUP_MODULE))["print"] = errors.note
    TERMINATION.take_for_failure(signal.SIGUSR1, errors.first)


@dataclass(frozen=True)
class StartedWorker:
    """A worker, and RLinf's call that started it."""

    allocate: Callable[..., Any]
    """RLinf's `Cluster.allocate`."""
    cluster: Any
    options: dict[str, Any]

    @property
    def node(self) -> int:
        """The node's rank in RLinf."""
        return int(self.options["node_rank"])

    def on(self, node: int) -> StartedWorker:
        """Return the same worker for another node."""
        # RLinf's worker reads its node from the variable, and Ray places it by the option: both must agree.
        variables = {**self.options["env_vars"], "CLUSTER_NODE_RANK": str(node)}
        return replace(self, options={**self.options, "node_rank": node, "env_vars": variables})


class StartedWorkers:
    """The workers of a group by rank; each can be started again on another node."""

    def __init__(self) -> None:
        self._workers: dict[int, StartedWorker] = {}

    def start(self, allocate: Callable[..., Any], cluster: Any, **options: Any) -> Any:
        """Have RLinf start a worker, remember the call, and return the worker's handle."""
        return self._start(StartedWorker(allocate, cluster, options))

    def hand_over(self) -> StartedWorkers:
        """Return the workers started so far, which belong to one run, and forget them."""
        own = StartedWorkers()
        own._workers, self._workers = self._workers, {}
        return own

    def start_elsewhere(self, rank: int) -> tuple[Any, str] | None:
        """Start the worker of `rank` on the suitable node with the fewest workers.

        Returns:
            Its handle and the address of the node; None if there is no such node.
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
        # The options are keyword arguments of RLinf's `Cluster.allocate`.
        return worker.allocate(worker.cluster, **worker.options)


def nodes_alike(worker: StartedWorker) -> list[int]:
    """Return the ranks of living nodes in the worker's node group with the same hardware as its own node.

    The hardware must be the same, as the worker uses accelerators and robots by RLinf's numbers.
    """
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    had = _hardware(worker.cluster.get_node_info(worker.node))
    group = worker.cluster.get_node_group(worker.options["node_group_label"])
    return [node.node_rank for node in group.nodes if node.ray_id in alive and _hardware(node) == had]


def _hardware(node: Any) -> list[tuple[str, int]]:
    return [(resource.type, resource.count) for resource in node.hardware_resources]


ENV_WORKERS = StartedWorkers()
"""The env workers of a run that is starting, until its runner takes them (`hand_over`)."""


def fail_unless_cleared() -> None:
    """Keep the process's exit status after a failure, which RLinf's main branch turns into 0 in most cases.

    There, an exit hook ends the process with status 0 unless an exception has reached `sys.excepthook`, which
    Hydra's own `sys.exit(1)` does not do. `clear_failure` must be called when a run has ended well.
    """
    _note_failure(True)


def clear_failure() -> None:
    """Allow exit status 0, as the run has ended well; see `fail_unless_cleared`."""
    _note_failure(False)


def _note_failure(has_failed: bool) -> None:
    cluster = borrowed.Cluster
    # RLinf 0.3 has neither the flag nor the exit hook.
    if hasattr(cluster, "_run_failed"):
        cluster._run_failed = has_failed
