"""The exit status of a driver, which RLinf's main branch decides at its exit."""

from __future__ import annotations

from rlinf_async.hosts.rlinf import borrowed


def fail_unless_cleared() -> None:
    """Keep the process's exit status after a failure, which RLinf's main branch turns into 0 in most cases.

    There, an exit hook ends the process with status 0 unless an exception has reached `sys.excepthook`, which
    Hydra's own `sys.exit(1)` does not do. `clear_failure` must be called when a run has ended well.
    """
    _note_failure(True)


def clear_failure() -> None:
    """Allow exit status 0, as the run has ended well; see `fail_unless_cleared`."""
    _note_failure(False)


def _note_failure(has_failed: bool) -> None:
    cluster = borrowed.Cluster
    # RLinf 0.3 has neither the flag nor the exit hook.
    if hasattr(cluster, "_run_failed"):
        cluster._run_failed = has_failed
