"""Checks that the processes of a run make on each other before it starts."""

from __future__ import annotations

from rlinf_async import __version__
from rlinf_async.ray_runtime.remote_calls import Fleet


def check_versions(fleet: Fleet) -> None:
    """Refuse to go on when a worker runs another version of this package.

    Raises:
        RuntimeError: one does.
    """
    for name in ("env", "inference", "learner"):
        for rank, version in enumerate(fleet.run(name, "plugin_version")):
            if version != __version__:
                raise RuntimeError(
                    f"{name} rank {rank} runs rlinf-async {version}, the driver {__version__}: install "
                    "the same version on every node"
                )


def share_memory(fleet: Fleet) -> list[bool]:
    """Let env workers hand observations over in memory that every inference rank can read; which can.

    It is tried out, as processes on one node may live in containers of their own.
    """
    offers = fleet.run("env", "offer_memory")
    reads = fleet.run("inference", "reads", offers)
    readable = [all(ranks) for ranks in zip(*reads, strict=True)]
    fleet.run("env", "share_memory", readable)
    return readable
