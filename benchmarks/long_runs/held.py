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
START_UP_S = 60.0
"""The first seconds of each process, which growth leaves out: it imports, builds models and fills caches."""
LEAST_SECONDS = 60.0
"""No growth is computed for a process with less time than this after its start-up: it was killed soon."""
SETTLED_SHARE = 0.4
"""The share of the run, at the beginning, that growth leaves out: caches and buffers still fill up."""
PEER_COUNT = 2.0
"""The descriptors that a process has more while one of its peers is alive, which is killed and comes back: a
connection from each side. A smaller growth over the whole time does not count."""
FLOOR_S = 30.0
"""A time in seconds that is long enough for a learner rank to train and release several batches."""
TOGETHER = "all that live throughout"
"""The name of the sum over the processes that are in every sample behind the beginning."""
LOG_MONITOR = "log_monitor.py"
"""Ray's process that keeps the log files of up to 200 processes open, of dead ones, too
(`RAY_LOG_MONITOR_MAX_OPEN_FILES`): its descriptors are measured, and not judged."""


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
    """Return the growth of the field `what` per minute, as a share of its mean.

    Keys are processes, and `TOGETHER`. Each process is a series of its own, so that no series contains the
    step from a killed process to its successor. Left out are the first `SETTLED_SHARE` of the run, and
    `START_UP_S` of each process that was started during the run. Of descriptors and files in memory, up to
    `PEER_COUNT` over all of the time is no growth. Files in memory are counted where they are fewest in each
    `FLOOR_S`: a learner rank holds those of the batches that it has not trained, and gives them all back.
    """
    first = looks[0].seconds
    settled = first + SETTLED_SHARE * (looks[-1].seconds - first)
    held: list[tuple[float, Mapping[str, float]]] = [(one.seconds, getattr(one, what)) for one in looks]
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    seen_at: dict[str, float] = {}
    for seconds, values in held:
        for name, value in values.items():
            begun = seen_at.setdefault(name, seconds)
            if seconds >= max(settled, first if begun == first else begun + START_UP_S):
                series[name].append((seconds, value))
    behind = [(seconds, values) for seconds, values in held if seconds >= settled]
    lasting = set.intersection(*(set(values) for _, values in behind)) if behind else set()
    series[TOGETHER] = [(seconds, sum(values[name] for name in lasting)) for seconds, values in behind]
    found = {}
    for name, every in series.items():
        samples = floors(every) if what == "shared" else every
        seconds = samples[-1][0] - samples[0][0]
        mean = sum(value for _, value in samples) / len(samples)
        if seconds < LEAST_SECONDS or not mean:
            continue
        per_second = slope(samples)
        if what != "memory" and abs(per_second) * seconds <= PEER_COUNT:
            per_second = 0.0
        found[name] = round(60 * per_second / mean, 5)
    return found


def floors(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the smallest of the samples (seconds, value) in each `FLOOR_S`: a leak raises it; memory that is
    taken and released within that time does not.
    """
    begun = samples[0][0]
    blocks: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        blocks[int((sample[0] - begun) // FLOOR_S)].append(sample)
    return [min(block, key=lambda sample: sample[1]) for block in blocks.values()]


def steepest(shares: Mapping[str, float], what: str) -> tuple[str, float]:
    """Return the process that grows most, and its growth per minute; descriptors of `LOG_MONITOR` do not
    count."""
    judged = {
        name: share
        for name, share in shares.items()
        if what != "descriptors" or not name.startswith(LOG_MONITOR)
    }
    return max(judged.items(), key=lambda item: item[1], default=("no process was seen for long enough", 0.0))


def _link(descriptor: Path) -> str:
    with suppress(OSError):
        return os.readlink(descriptor)
    return ""
