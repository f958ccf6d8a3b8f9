"""The resources of a run's processes: memory, descriptors, threads, shared memory, disk; and which will run
out.

A sample costs some reads of `/proc`. The memory of a process includes its children, such as simulators. Its
descriptors and threads do not, as their limits are per process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rlinf_async.core.growth import Foreteller, Foretold, Held
from rlinf_async.observe.failures import record_failure
from rlinf_async.observe.pace import seconds

SHARED_MEMORY = Path("/dev/shm")
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
CGROUP_THREADS = Path("/sys/fs/cgroup/pids.max")
SAMPLE_INTERVAL_S = 1.0
RUN_HOLDER = "the run"
"""The name, among those of processes, for resources of no single process: shared memory and the run
directory."""
MAX_ENTRIES = 20_000
"""The most files of a run directory that are counted for its size."""
BYTE_RESOURCES = frozenset({"memory", "GPU memory", "address space", "shared memory", "disk"})
"""Resources that are counted in bytes; others are numbers of things."""

Holding = dict[str, dict[str, float]]
"""By resource: `value`, `limit` and, in the status of a run, its growth `per_minute`, as plain data."""
STEADY_SHARE = 0.01
"""Usage that changes by a smaller share of itself in a minute is called steady."""


def held_by_this_process(*, children: bool = True) -> Holding:
    """Return the `memory`, `descriptors`, `threads` and, if limited, `address space` of this process.

    The memory includes that of its `children`.
    """
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
    """Return the used `shared memory` of this machine, and the size of a run directory on its `disk`."""
    holding = {}
    with suppress(OSError):
        shared = psutil.disk_usage(str(SHARED_MEMORY))
        holding["shared memory"] = Held(value=shared.used, limit=shared.used + shared.free)
    with suppress(OSError):
        size = size_of(run_dir)
        holding["disk"] = Held(value=size, limit=size + psutil.disk_usage(str(run_dir)).free)
    return as_plain(holding)


def size_of(directory: Path) -> int:
    """Return the bytes on the disk of all files in a directory, at any depth; links are not followed."""
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
    """Return the free memory, in bytes, of this machine, or of the container of this process."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # without a limit the file has `max`
        most, used = (int(file.read_text()) for file in CGROUP_MEMORY)
        left = min(left, max(0, most - used))
    return int(left)


def as_plain(holding: Mapping[str, Held]) -> Holding:
    """Return a holding as plain data; an infinite `limit` is left out."""
    return {
        what: {"value": held.value, **({"limit": held.limit} if held.limit < float("inf") else {})}
        for what, held in holding.items()
    }


def as_held(holding: Any) -> dict[str, Held]:
    """Return the holding of plain data; damaged entries are left out."""
    found = {}
    for what, held in holding.items() if isinstance(holding, Mapping) else ():
        if isinstance(held, Mapping) and isinstance(value := held.get("value"), int | float):
            limit = held.get("limit")
            found[str(what)] = Held(
                value=value, limit=limit if isinstance(limit, int | float) else float("inf")
            )
    return found


def sentence_of(foretold: Foretold) -> str:
    """Return a forecast in a sentence: the resource, its growth, and the time until its limit is reached."""
    what, held = foretold.what, foretold.held
    say = partial(amount, what)
    return (
        f"its use of {what} grows by {say(foretold.per_second * 60)} a minute: it uses {say(held.value)} of "
        f"at most {say(held.limit)}, which it reaches in {seconds(foretold.seconds)}"
    )


def in_words(holding: Any) -> str:
    """Return a holding in a line: `1.2 GB memory, 34 descriptors, 12 threads`."""
    return ", ".join(f"{amount(what, held.value)} {what}" for what, held in as_held(holding).items())


def amount(what: str, value: float) -> str:
    """Return an amount of a resource in words: `1.2 GB` of memory, `34` descriptors."""
    return _bytes(value) if what in BYTE_RESOURCES else _count(value)


def growth_in_words(what: str, held: Any) -> str:
    """Return the growth of a resource, as plain data of the status: `+10 MB a minute`, `steady`; "" if it is
    unknown.
    """
    value, per_minute = (held.get(name) for name in ("value", "per_minute"))
    if not isinstance(value, int | float) or not isinstance(per_minute, int | float):
        return ""
    if abs(per_minute) < STEADY_SHARE * value or not per_minute:
        return "steady"
    return f"{'+' if per_minute > 0 else '-'}{amount(what, abs(per_minute))} a minute"


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


class ResourceLog:
    """Follows the resources of a run's processes, and forecasts which will run out.

    A forecast is printed, and recorded as a fault the first time that a resource of a process has one.
    """

    def __init__(self, run_dir: Path, *, say: Callable[[str], None]) -> None:
        self._run_dir, self._say = run_dir, say
        self._foreteller = Foreteller()
        self._last_look = float("-inf")
        self._status: dict[str, Any] = {}

    def look(
        self, now: float, processes: Mapping[str, Holding] | Callable[[], Mapping[str, Holding]]
    ) -> dict[str, Any]:
        """Take a sample of `processes` by name, at `now` in seconds; return `holds` and `foretold` for the
        status.

        A call within `SAMPLE_INTERVAL_S` of the last one returns the same, and does not call `processes`;
        so does a call that cannot take a sample.
        """
        if now - self._last_look < SAMPLE_INTERVAL_S:
            return self._status
        self._last_look = now
        try:
            asked = processes() if callable(processes) else processes
        except (OSError, MemoryError, psutil.Error):  # a process without descriptors cannot read `/proc`
            return self._status
        holdings = {**asked, RUN_HOLDER: held_by_machine(self._run_dir)}
        foretold = dict(self._status.get("foretold", {}))
        for end in self._foreteller.look(now, {name: as_held(held) for name, held in holdings.items()}):
            sentence, key = sentence_of(end), f"{end.process}, {end.what}"
            if key not in foretold:
                record_failure(
                    self._run_dir,
                    process=end.process,
                    what="runs out",
                    error=sentence,
                    action="the run goes on",
                )
            foretold[key] = f"{end.process}: {sentence}"
            self._say(foretold[key])
        for name, holding in holdings.items():
            for what, held in holding.items():
                if (growth := self._foreteller.per_second(name, what)) is not None:
                    held["per_minute"] = growth * 60
        self._status = {"holds": holdings, "foretold": foretold}
        return self._status
