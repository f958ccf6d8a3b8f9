"""The resources that a process holds: memory, descriptors, threads.

A sample costs some reads of `/proc`. The memory of a process includes its children, such as simulators.
Descriptors and threads are its own only, as their limits are per process.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
CGROUP_THREADS = Path("/sys/fs/cgroup/pids.max")

Holding = dict[str, dict[str, float]]
"""By resource: `value`, `limit` and, in the status of a run, its growth `per_minute`, as plain data."""


def held_by_this_process(*, children: bool = True) -> Holding:
    """Return the `memory`, `descriptors`, `threads` and, if limited, `address space` of this process.

    The memory includes that of its `children`.
    """
    own = psutil.Process()
    memory = sum(_private_bytes(each) for each in (own, *(_children(own) if children else ())))
    holding: dict[str, tuple[float, float]] = {
        "memory": (memory, memory + memory_left()),
        "descriptors": (own.num_fds(), _soft_limit(resource.RLIMIT_NOFILE)),
        "threads": (own.num_threads(), _most_threads()),
    }
    if (most := _soft_limit(resource.RLIMIT_AS)) < float("inf"):
        holding["address space"] = own.memory_info().vms, most
    return as_plain(holding)


def memory_left() -> int:
    """Return the free memory, in bytes, of this machine, or of the container of this process."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # without a limit the file has `max`
        most, used = (int(file.read_text()) for file in CGROUP_MEMORY)
        left = min(left, max(0, most - used))
    return int(left)


def as_plain(holding: Mapping[str, tuple[float, float]]) -> Holding:
    """Return a holding, (value, limit) by resource, as plain data; an infinite limit is left out."""
    return {
        what: {"value": value, **({"limit": limit} if limit < float("inf") else {})}
        for what, (value, limit) in holding.items()
    }


def _children(process: psutil.Process) -> Iterable[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return ()


def _private_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        memory = process.memory_info()
        # Shared memory is counted once, for the machine, and not again for every process that maps it.
        return max(0, memory.rss - memory.shared)
    return 0


def _soft_limit(kind: int) -> float:
    soft, _ = resource.getrlimit(kind)
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def _most_threads() -> float:
    most = _soft_limit(resource.RLIMIT_NPROC)
    for file in (CGROUP_THREADS, Path("/proc/sys/kernel/threads-max")):
        with suppress(OSError, ValueError):
            most = min(most, float(file.read_text()))
    return most
