"""A Ray cluster of two nodes on this machine, and a command that runs on it.

python -m tests.runs.two_nodes COMMAND [ARGUMENT ...]
"""

import os
import subprocess
import sys

from ray.cluster_utils import Cluster

CORES = 8
"""That each node claims to have; Ray only counts with them."""


def main(*command: str) -> int:
    """The exit status of the command, to which `RAY_ADDRESS` names the cluster."""
    cluster = Cluster()
    try:
        for rank in range(2):
            # As on real nodes, where RLinf's documentation says to export it before `ray start`.
            cluster.add_node(num_cpus=CORES, env_vars={"RLINF_NODE_RANK": str(rank)}, include_dashboard=False)
        return subprocess.run(
            command, env={**os.environ, "RAY_ADDRESS": cluster.address}, check=False
        ).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
