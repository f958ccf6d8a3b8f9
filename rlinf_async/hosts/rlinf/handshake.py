"""What the processes of a run find out about each other before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async import __version__
from rlinf_async.hosts.rlinf.fleet import Fleet


def check_classes(groups: Mapping[str, Any]) -> None:
    """Refuse workers of RLinf's own, by group.

    Raises:
        TypeError: some are.
    """
    for name, group in groups.items():
        if not hasattr(group, "plugin_version"):
            raise TypeError(
                f"the {name} workers are {group.worker_cls_name}, which cannot run asynchronously; provide a "
                f"subclass of rlinf-async's worker by an entry point rlinf_async.workers: {name}"
            )


def check_versions(fleet: Fleet) -> None:
    """Refuse to go on when a worker runs another version of this package.

    Raises:
        RuntimeError: one does.
    """
    for name in ("env", "rollout", "actor"):
        for rank, version in enumerate(fleet.run(name, "plugin_version")):
            if version != __version__:
                raise RuntimeError(
                    f"{name} rank {rank} runs rlinf-async {version}, the driver {__version__}: install "
                    "the same version on every node"
                )


def share_memory(fleet: Fleet) -> None:
    """Let env workers hand observations over in memory that every inference rank can read.

    It is tried out, as processes on one node may live in containers of their own.
    """
    offers = fleet.run("env", "offer_memory")
    reads = fleet.run("rollout", "reads", offers)
    fleet.run("env", "share_memory", [all(ranks) for ranks in zip(*reads, strict=True)])
