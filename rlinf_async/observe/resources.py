"""What processes of a run hold: memory, descriptors, threads, shared memory, disk; and what of it runs out.

A sample costs some reads of `/proc`. A process counts with the children that it has started, such as
simulators of its own; its descriptors and threads are its own, as their limits are.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rlinf_async.core.growth import Foreteller, Foretold, Held
from rlinf_async.observe.failures import record_failure
from rlinf_async.observe.pace import seconds

SHARED_MEMORY = Path("/dev/shm")
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
CGROUP_THREADS = Path("/sys/fs/cgroup/pids.max")
LOOK_EVERY_S = 1.0
RUN = "the run"
"""The name of what holds things that no one process has: files in shared memory, and its directory."""
MAX_ENTRIES = 20_000
"""Files of a run directory that are looked at for its size; of more, the rest is not counted."""
UNITS = {"memory": "bytes", "address space": "bytes", "shared memory": "bytes", "disk": "bytes"}
"""What is counted in bytes; all else is a number of things."""

Holding = dict[str, dict[str, float]]
"""By resource: `value` and `limit`, as plain data."""


def held_by_this_process(*, children: bool = True) -> Holding:
    """What this process, perhaps with its `children`, holds of `memory`, of `descriptors`, of `threads` and,
    where that has a limit, of `address space`."""
    own = psutil.Process()
    memory = sum(_private_bytes(each) for each in (own, *(_children(own) if children else ())))
    holding = {
        "memory": Held(value=memory, limit=memory + memory_left()),
        "descriptors": Held(value=own.num_fds(), limit=_soft_limit(resource.RLIMIT_NOFILE)),
        "threads": Held(value=own.num_threads(), limit=_most_threads()),
    }
    if (most := _soft_limit(resource.RLIMIT_AS)) < float("inf"):
        holding["address space"] = Held(value=own.memory_info().vms, limit=most)
    return as_plain(holding)


def held_by_machine(run_dir: Path) -> Holding:
    """What files hold of this machine's `shared memory`, and a run directory of the `disk` that it is on."""
    holding = {}
    with suppress(OSError):
        shared = psutil.disk_usage(str(SHARED_MEMORY))
        holding["shared memory"] = Held(value=shared.used, limit=shared.used + shared.free)
    with suppress(OSError):
        size = size_of(run_dir)
        holding["disk"] = Held(value=size, limit=size + psutil.disk_usage(str(run_dir)).free)
    return as_plain(holding)


def size_of(directory: Path) -> int:
    """Bytes on the disk of all files in a directory, at any depth; links are not followed."""
    total, entries, folders = 0, 0, [str(directory)]
    while folders and entries < MAX_ENTRIES:
        with suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def memory_left() -> int:
    """Bytes that this machine, or the container that this process is in, can still give."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # a container without a limit says `max`
        most, used = (int(file.read_text()) for file in CGROUP_MEMORY)
        left = min(left, max(0, most - used))
    return int(left)


def as_plain(holding: Mapping[str, Held]) -> Holding:
    """The same as plain data; what has no limit has none here."""
    return {
        what: {"value": held.value, **({"limit": held.limit} if held.limit < float("inf") else {})}
        for what, held in holding.items()
    }


def as_held(holding: Any) -> dict[str, Held]:
    """Plain data as it was; what is damaged is left out."""
    found = {}
    for what, held in holding.items() if isinstance(holding, Mapping) else ():
        if isinstance(held, Mapping) and isinstance(value := held.get("value"), int | float):
            limit = held.get("limit")
            found[str(what)] = Held(
                value=value, limit=limit if isinstance(limit, int | float) else float("inf")
            )
    return found


def sentence_of(foretold: Foretold) -> str:
    """An end that is coming, in a sentence: what grows, how fast, and when it is reached."""
    what, held = foretold.what, foretold.held
    say = _bytes if what in UNITS else _count
    return (
        f"what it holds of {what} grows by {say(foretold.per_second * 60)} a minute: it holds "
        f"{say(held.value)} of at most {say(held.limit)}, which it reaches in {seconds(foretold.seconds)}"
    )


def in_words(holding: Any) -> str:
    """What a process holds, in a line: `1.2 GB memory, 34 descriptors, 12 threads`."""
    return ", ".join(
        f"{(_bytes if what in UNITS else _count)(held.value)} {what}"
        for what, held in as_held(holding).items()
    )


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _count(count: float) -> str:
    return f"{count:.0f}" if count >= 10 else f"{count:.2g}"


def _children(process: psutil.Process) -> Iterable[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return ()


def _private_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        memory = process.memory_info()
        # What is shared is counted as shared memory, and not once more with everybody who maps it.
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


class ResourceLog:
    """What the processes of a run hold, and the sentences on what of it will run out.

    An end that is foretold is a line of the record of faults, and is said.
    """

    def __init__(self, run_dir: Path, *, say: Callable[[str], None]) -> None:
        self._run_dir, self._say = run_dir, say
        self._foreteller = Foreteller()
        self._last_look = float("-inf")
        self._status: dict[str, Any] = {}

    def look(
        self, now: float, processes: Mapping[str, Holding] | Callable[[], Mapping[str, Holding]]
    ) -> dict[str, Any]:
        """Take what each process holds, by name, at `now` in seconds; `holds` and `foretold` for the status.

        A look that follows another within `LOOK_EVERY_S` returns the same, and asks nobody.
        """
        if now - self._last_look < LOOK_EVERY_S:
            return self._status
        self._last_look = now
        asked = processes() if callable(processes) else processes
        holdings = {**asked, RUN: held_by_machine(self._run_dir)}
        foretold = dict(self._status.get("foretold", {}))
        for end in self._foreteller.look(now, {name: as_held(held) for name, held in holdings.items()}):
            sentence = sentence_of(end)
            foretold[f"{end.process}, {end.what}"] = f"{end.process}: {sentence}"
            record_failure(
                self._run_dir, process=end.process, what="runs out", error=sentence, action="the run goes on"
            )
            self._say(f"{end.process}: {sentence}")
        self._status = {"holds": holdings, "foretold": foretold}
        return self._status
