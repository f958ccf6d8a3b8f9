"""Says how long Ray takes to miss a node whose link is cut: `python -m tests.runs.missed_node`.

Two nodes on this machine, the second in a network of its own (`tests.wire`). The clock stops when a call to a
process of the second node fails.
"""

import sys
import time

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.second_network import Wire

PATIENCE_S = 300.0


class Busy:
    """A process of the second node."""

    def answer(self) -> None:
        """Show that it is there."""

    def work(self) -> None:
        """Take longer than anybody waits."""
        time.sleep(2 * PATIENCE_S)


def main() -> None:
    wire, cluster = Wire(), Cluster()
    try:
        cluster.add_node(num_cpus=1, node_ip_address=wire.here, include_dashboard=False)
        with wire.other_end():
            second = cluster.add_node(num_cpus=1, node_ip_address=wire.there, include_dashboard=False)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        there = NodeAffinitySchedulingStrategy(second.node_id, soft=False)
        busy = ray.remote(Busy).options(num_cpus=0, scheduling_strategy=there).remote()
        ray.get(busy.answer.remote())
        working, began = busy.work.remote(), time.monotonic()
        wire.cut()
        missed, _ = ray.wait([working], timeout=PATIENCE_S)
        seconds = time.monotonic() - began
        sys.stdout.write(f"{'missed after' if missed else 'not missed for'} {seconds:.1f} s\n")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
