"""A Ray cluster of two nodes on this machine, and a command that runs on it.

python -m tests.runs.two_nodes COMMAND [ARGUMENT ...]

SIGUSR1 takes the second node away, as a power cut does. SIGTERM goes on to the command.
"""

import os
import signal
import subprocess
import sys

from ray.cluster_utils import Cluster

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
    cluster = Cluster()
    try:
        # As on real nodes, where RLinf's documentation says to export it before `ray start`.
        nodes = [
            cluster.add_node(
                num_cpus=CORES,
                env_vars={"RLINF_NODE_RANK": str(rank)},
                include_dashboard=False,
                _system_config=None if rank else {**SOON_MISSED, **STAYS},
            )
            for rank in range(2)
        ]
        process = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster.address})
        signal.signal(signal.SIGUSR1, lambda *_: cluster.remove_node(nodes[1], allow_graceful=False))
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
