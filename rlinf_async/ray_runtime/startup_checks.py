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
