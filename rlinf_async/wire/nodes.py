"""The nodes of Ray's cluster: this one, the others, and those that have left it."""

from __future__ import annotations

import ray


def this_node() -> str:
    """Ray's identifier of this process's node; "" outside Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def has_other_nodes() -> bool:
    """Return True if Ray's cluster has more than this node."""
    return ray.is_initialized() and sum(node["Alive"] for node in ray.nodes()) > 1


def on_lost_node(place: str | tuple[str, int]) -> bool:
    """Return True if `place`, a unix socket or host and port, is on a node that has left Ray's cluster."""
    if isinstance(place, str) or not ray.is_initialized():
        return False
    # Ray lists a node that has come back as a second node with the same address.
    lives = [node["Alive"] for node in ray.nodes() if node["NodeManagerAddress"] == place[0]]
    return bool(lives) and not any(lives)


def is_lost(node: str) -> bool:
    """Return True if `node` has left Ray's cluster."""
    return any(one["NodeID"] == node and not one["Alive"] for one in ray.nodes())


def lost_nodes() -> str:
    """The addresses of the nodes that have left Ray's cluster, as text."""
    return (
        ", ".join(sorted({node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]}))
        or "unknown"
    )


def node_address() -> str:
    """Ray's address of this node; the loopback address outside Ray."""
    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"
