"""Limits on open files and threads that can be too low for a run on Ray. `ulimit -u` and its like count each
thread of each process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

LEAST_THREADS = 250
"""On two cores the smallest runs have 303 (veRL) and 381 threads (RLinf) at once, on more cores more. With a
limit of 200 the driver cannot start its own, and with 60 Ray does not come up, which takes two minutes."""
TOO_FEW_FILES = 64
"""With this limit of open files Ray's workers do not start; a run of eight environments works with 256."""
ENOUGH_FILES = 4096
GROUPS_OF_PROCESS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def short_of_threads() -> str | None:
    """Return the limit that a run on Ray would exceed, with the remedy; None if there is room for one."""
    for limit, used, name, remedy in _limits():
        if limit - used < LEAST_THREADS:
            return (
                f"{name} allows {limit} processes and threads, and {used} run already, where a run on Ray "
                f"starts more than {LEAST_THREADS}; {remedy}"
            )
    return None


def short_of_files() -> str | None:
    """Return the limit of open files that is too low for a run on Ray, with the remedy, or None."""
    # The soft limit, though Ray's driver raises its own: the template of workers may have begun before.
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit > TOO_FEW_FILES:
        return None
    may = hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES
    ways = "raise it: ulimit -n" if may else "have it raised in /etc/security/limits.conf:"
    return f"ulimit -n allows {limit} open files, which are too few for a run on Ray; {ways} {ENOUGH_FILES}"


def _limits() -> Iterator[tuple[int, int, str, str]]:
    """Yield each limit with the number of threads that count, its name, and what raises it."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.getuid() != 0:  # the system lets root go beyond it
        wanted = limit + 4 * LEAST_THREADS
        may = hard == resource.RLIM_INFINITY or wanted <= hard
        ways = "raise it: ulimit -u" if may else "have it raised in /etc/security/limits.conf:"
        yield limit, _threads_of(os.getuid()), "ulimit -u", f"{ways} {wanted}"
    for group in _control_groups():
        # A group without the file has no limit, as the highest of all, or the controller is off.
        if (file := group / "pids.max").is_file() and (text := file.read_text().strip()).isdecimal():
            used, wanted = int((group / "pids.current").read_text()), int(text) + 4 * LEAST_THREADS
            if group in (GROUPS, GROUPS / "pids"):  # a container sees its own group as the highest
                yield int(text), used, "the container", f"start it with --pids-limit={wanted}"
            else:
                yield (
                    int(text),
                    used,
                    f"the control group {group.name}",
                    f"raise its pids.max to {wanted} (systemd: TasksMax)",
                )


def _control_groups() -> Iterator[Path]:
    """Yield the folder of this process's control group that counts threads, and of those above it."""
    for line in GROUPS_OF_PROCESS.read_text().splitlines() if GROUPS_OF_PROCESS.is_file() else ():
        _, controllers, place = line.split(":", 2)
        if controllers and "pids" not in controllers.split(","):
            continue
        root = GROUPS / "pids" if controllers else GROUPS  # version 1 of control groups, or 2
        inner = Path(place.lstrip("/"))
        yield from (root / each for each in (inner, *inner.parents))


def _threads_of(account: int) -> int:
    """Return the number of threads of an account."""
    found = psutil.process_iter(["uids", "num_threads"])
    # A process that ends meanwhile, or that this account may not look at, has None there.
    facts = [(one.info["uids"], one.info["num_threads"]) for one in found]
    return sum(threads or 0 for uids, threads in facts if uids is not None and uids.real == account)
