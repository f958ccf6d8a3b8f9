"""Memory, descriptors and files in memory of the processes of a run, and their growth per minute."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.watch import PAGE_BYTES, family, title_of
from rlinf_async.core.growth import slope

SHARED_PREFIXES = ("/memfd:", "/dev/shm/")
"""Beginnings of descriptors' links that point to shared memory."""
LEAST_SECONDS = 60.0
"""No growth is computed for a process seen for a shorter time, as it was killed soon after its start."""
SETTLED_SHARE = 0.4
"""The share of the time, at the beginning, that growth leaves out: caches and buffers still fill up."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A sample of all processes of a run."""

    seconds: float
    memory: Mapping[str, float]
    """Resident memory in MB, by process."""
    descriptors: Mapping[str, float]
    shared: Mapping[str, float]
    """Number of open files in memory (`memfd` and /dev/shm), by process."""


def look(pid: int, *, seconds: float) -> Look:
    """Take a sample of a process and all its descendants."""
    memory, descriptors, shared = {}, {}, {}
    for member in family(pid):
        with suppress(OSError, IndexError):  # the process may end meanwhile
            folder = Path(f"/proc/{member}")
            pages = int((folder / "statm").read_text().split()[1])
            links = [_link(each) for each in (folder / "fd").iterdir()]
            name = f"{title_of((folder / 'cmdline').read_text())} {member}"
            memory[name] = pages * PAGE_BYTES / 1e6
            descriptors[name] = float(len(links))
            shared[name] = float(sum(link.startswith(SHARED_PREFIXES) for link in links))
    return Look(seconds=seconds, memory=memory, descriptors=descriptors, shared=shared)


def growth(looks: Sequence[Look], what: str) -> dict[str, float]:
    """Return the growth of the field `what` per minute, as a share of its mean; keys: processes, and "all".

    The first `SETTLED_SHARE` of the time is left out.
    """
    begun = looks[0].seconds + SETTLED_SHARE * (looks[-1].seconds - looks[0].seconds)
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in looks:
        if one.seconds >= begun:
            held: Mapping[str, float] = getattr(one, what)
            series["all"].append((one.seconds, sum(held.values())))
            for name, value in held.items():
                series[name].append((one.seconds, value))
    return {
        name: round(60 * slope(samples) / mean, 5)
        for name, samples in series.items()
        if samples[-1][0] - samples[0][0] >= LEAST_SECONDS
        and (mean := sum(value for _, value in samples) / len(samples)) > 0
    }


def steepest(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the process that grows most, and its growth per minute."""
    return max(shares.items(), key=lambda item: item[1], default=("no process was seen for a minute", 0.0))


def _link(descriptor: Path) -> str:
    with suppress(OSError):
        return os.readlink(descriptor)
    return ""
