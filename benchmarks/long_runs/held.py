"""What the processes of a run hold over minutes, and how steeply it grows."""

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
"""How the links of descriptors to memory that processes share begin."""
LEAST_SECONDS = 60.0
"""A process that was seen for less has no slope: it was started and killed meanwhile."""
SETTLED_SHARE = 0.4
"""The share of the time, at the beginning, that no slope is taken of: processes fill what they keep."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at all processes of a run."""

    seconds: float
    memory: Mapping[str, float]
    """MB that are resident, by process."""
    descriptors: Mapping[str, float]
    shared: Mapping[str, float]
    """Files in memory (`memfd` and /dev/shm) that each has open."""


def look(pid: int, *, seconds: float) -> Look:
    """Look at a process and all that descend from it."""
    memory, descriptors, shared = {}, {}, {}
    for member in family(pid):
        with suppress(OSError, IndexError):  # it may end meanwhile
            folder = Path(f"/proc/{member}")
            pages = int((folder / "statm").read_text().split()[1])
            links = [_link(each) for each in (folder / "fd").iterdir()]
            name = f"{title_of((folder / 'cmdline').read_text())} {member}"
            memory[name] = pages * PAGE_BYTES / 1e6
            descriptors[name] = float(len(links))
            shared[name] = float(sum(link.startswith(SHARED_PREFIXES) for link in links))
    return Look(seconds=seconds, memory=memory, descriptors=descriptors, shared=shared)


def growth(looks: Sequence[Look], what: str) -> dict[str, float]:
    """By which share of itself each process grows in a minute, of what was settled; by process, and "all"."""
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
    """The process that grows most, and by how much in a minute."""
    return max(shares.items(), key=lambda item: item[1], default=("nobody was seen for a minute", 0.0))


def _link(descriptor: Path) -> str:
    with suppress(OSError):
        return os.readlink(descriptor)
    return ""
