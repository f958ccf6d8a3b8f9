"""Starts the request channel and the coordinator, on every host that runs on Ray."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlinf_async.entry_points import load_class
from rlinf_async.loops.run_settings import RunSettings

CHANNELS_GROUP = "rlinf_async.channels"
# Ray keeps the number in 32 bits.
MAX_CHANNEL_CALLS = 2**31 - 1
"""Simultaneous calls of a channel: every env shard may wait in one."""


def start_channels(settings: RunSettings, *, version: int) -> tuple[Any, Any]:
    """Start the request channel and the coordinator on this node, and return Ray's handles.

    They are actors of Ray and no workers of a framework, whose base classes load torch and more.
    """
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # 0 CPUs: they mostly wait, and the places of a run are counted without them.
    options = {"num_cpus": 0, "max_concurrency": MAX_CHANNEL_CALLS, "scheduling_strategy": this_node}
    requests, coordinator = (
        ray.remote(load_class(CHANNELS_GROUP, name)).options(**options)
        for name in ("requests", "coordinator")
    )
    # A host's own settings would bring the host's modules into both processes.
    common = settings.common()
    return requests.remote(common), coordinator.remote(common, version)
