"""Starts the request channels and the coordinator, on every host that runs on Ray."""

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
    """Start the request channel and the coordinator on this node, and return Ray's handles."""
    this_node = ray.get_runtime_context().get_node_id()
    return start_request_channel(settings, this_node), _start("coordinator", this_node, settings, version)


def start_request_channel(settings: RunSettings, node: str) -> Any:
    """Start a request channel on `node`, and return Ray's handle."""
    return _start("requests", node, settings)


def _start(name: str, node: str, settings: RunSettings, *arguments: object) -> Any:
    """Start a channel as an actor of Ray: the base classes of a framework's workers load torch and more."""
    actor = ray.remote(load_class(CHANNELS_GROUP, name)).options(
        # They mostly wait, and the places of a run are counted without them.
        num_cpus=0,
        max_concurrency=MAX_CHANNEL_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    # A host's own settings would bring the host's modules into the process.
    return actor.remote(settings.common(), *arguments)
