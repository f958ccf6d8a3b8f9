"""A Ray cluster of two nodes on this machine, and a command that runs on it.

python -m tests.runs.two_nodes [--wire] COMMAND [ARGUMENT ...]

SIGUSR1 takes the second node away, as a power cut does. With `--wire` it is in a network of its own, and the
wire to it is cut: its processes go on, and nothing is heard of them. SIGTERM goes on to the command.
"""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

from ray.cluster_utils import Cluster

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


def main(*command: str) -> int:
    """The exit status of the command, to which `RAY_ADDRESS` names the cluster."""
    wire = Wire() if command[0] == "--wire" else None
    cluster = Cluster()
    try:
        first = _add_node(cluster, 0, wire and wire.here, _system_config={**SOON_MISSED, **STAYS})
        with wire.other_end() if wire else nullcontext():
            second = _add_node(cluster, 1, wire and wire.there)
        assert first is cluster.head_node
        address = {"RAY_ADDRESS": cluster.address}
        process = subprocess.Popen(command[1:] if wire else command, env={**os.environ, **address})

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
    variables = {"RLINF_NODE_RANK": str(rank)}
    return cluster.add_node(num_cpus=CORES, env_vars=variables, include_dashboard=False, **options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
