"""A Ray cluster of two nodes on this machine, and a command that runs on it.

python -m tests.runs.two_nodes [--wire] COMMAND [ARGUMENT ...]

SIGUSR1 takes the second node away, as a power cut does. With `--wire` it is in a network of its own, and the
wire to it is cut: its processes go on, and nothing is heard of them. SIGTERM goes on to the command.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ray.cluster_utils import Cluster

from rlinf_async.hosts.rlinf.shared import SHARED
from rlinf_async.ray_runtime.cluster.quick_start import starting_quickly
from rlinf_async.ray_runtime.cluster.start_worker import TEMPLATE_VARIABLE
from tests.second_network import Wire

CORES = 8
"""That each node claims to have; Ray only counts with them."""
SOON_MISSED = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}
"""Ray misses a node that has gone after two seconds by these settings, and after half a minute without."""
STAYS = {"max_direct_call_object_size": 1000}
"""What is longer stays on the node where it was made: pieces of real runs have megabytes, those of tests some
kilobytes, and by itself Ray has what is below 100 kB travel at once."""
NODES_VARIABLE = "RLINF_NODE_RANK"
ADDRESS_VARIABLE = "RAY_ADDRESS"
OF_TWO_NODES = replace(
    SHARED, free=SHARED.free | {NODES_VARIABLE}, checked=SHARED.checked | {ADDRESS_VARIABLE}
)
"""Each node has a template of workers of its own."""
OF_WORKERS = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "hide",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RLINF_LOG_LEVEL": "WARNING",
}
"""Variables that a driver sets for its workers. The template has to have them before there is a driver."""


def main(*command: str) -> int:
    """The exit status of the command, to which `RAY_ADDRESS` names the cluster."""
    os.environ |= OF_WORKERS
    with starting_quickly(OF_TWO_NODES):
        return run(command)


def run(command: Sequence[str]) -> int:
    wire = Wire() if command[0] == "--wire" else None
    cluster = Cluster()
    try:
        first = _add_node(cluster, 0, wire and wire.here, _system_config={**SOON_MISSED, **STAYS})
        with wire.other_end() if wire else nullcontext():
            second = _add_node(cluster, 1, wire and wire.there)
        assert first is cluster.head_node
        environment = {**os.environ, ADDRESS_VARIABLE: cluster.address}
        del environment[TEMPLATE_VARIABLE]  # a driver would give it to its workers
        process = subprocess.Popen(command[1:] if wire else command, env=environment)

        def lose_second(*_: object) -> None:
            if wire:
                wire.cut()
            else:
                cluster.remove_node(second, allow_graceful=False)

        signal.signal(signal.SIGUSR1, lose_second)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()
    finally:
        cluster.shutdown()


def _add_node(cluster: Cluster, rank: int, address: str | None, **options: Any) -> Any:
    if address is not None:
        options["node_ip_address"] = address
    # As on real nodes, where RLinf's documentation says to export it before `ray start`.
    variables = {NODES_VARIABLE: str(rank)}
    return cluster.add_node(num_cpus=CORES, env_vars=variables, include_dashboard=False, **options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
