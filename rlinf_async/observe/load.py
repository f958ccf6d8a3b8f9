"""The processor cores that a run keeps busy on its machine, apart from those that other work keeps busy."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

import psutil

OWN_CORES, OTHER_CORES, ALL_CORES = (f"async/load/{name}" for name in ("own_cores", "other_cores", "cores"))
FULL_SHARE = 0.9
"""A machine is full if at least this share of the cores that a run may use is busy."""
RAYLET_NAME = "raylet"
IDLE_FIELDS = ("idle", "iowait")
COUNTED_TWICE = ("guest", "guest_nice")
"""Linux counts the time of guests in `user` and `nice`, too."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Mean numbers of busy cores over a time."""

    own: float
    others: float
    cores: float
    """The number of cores that the run may use."""

    @property
    def is_full(self) -> bool:
        return self.own + self.others >= FULL_SHARE * self.cores

    def as_metrics(self) -> dict[str, float]:
        return {OWN_CORES: self.own, OTHER_CORES: self.others, ALL_CORES: self.cores}

    @classmethod
    def from_metrics(cls, line: Mapping[str, float]) -> Load | None:
        """Return the load in the metrics of a step; None if it was not measured."""
        if not {OWN_CORES, OTHER_CORES, ALL_CORES} <= line.keys():
            return None
        return cls(own=line[OWN_CORES], others=line[OTHER_CORES], cores=line[ALL_CORES])

    def in_words(self) -> str:
        return (
            f"{min(self.cores, self.own + self.others):.2g} of {self.cores:.0f} processor cores are busy, "
            f"{self.own:.2g} by this run and {self.others:.2g} by other work"
        )


def usable_cores() -> int | None:
    """Return the processor cores that this process may use; None if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def torch_is_for_cpu(version: str | None = None) -> bool:
    """True if torch, of this environment or of that `version`, can use no accelerator."""
    if version is None:
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version("torch")
    return version is not None and version.endswith("+cpu")


Usage = tuple[float, float | None]
"""CPU seconds since some moment: of the machine, and of the run's processes; None where these are unknown."""


def cpu_seconds() -> Usage:
    """Return the CPU seconds of this machine since its start, and those of this process and its descendants.

    A cluster that was there before the run is no descendant: then the run's own seconds are unknown.
    """
    times = psutil.cpu_times()._asdict()
    busy = sum(took for name, took in times.items() if name not in (*IDLE_FIELDS, *COUNTED_TWICE))
    own, names = 0.0, set()
    with suppress(psutil.Error):
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                took = process.cpu_times()
                own += took.user + took.system + took.children_user + took.children_system
                names.add(process.name())
    return busy, None if _is_on_ray() and RAYLET_NAME not in names else own


def _is_on_ray() -> bool:
    """True if this process is a client of Ray; Ray is not imported to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class LoadMeter:
    """Busy cores between two moments: of the run, and of everything else on its machine."""

    def __init__(
        self,
        usage: Callable[[], Usage] = cpu_seconds,
        now: Callable[[], float] = time.monotonic,
        cores: int | None = None,
    ) -> None:
        self._usage, self._now, self._cores = usage, now, cores or usable_cores()
        self._last = (now(), usage())

    def pop(self) -> Load | None:
        """Return the load since the last call; None where it is unknown."""
        (before, (busy_before, own_before)), self._last = self._last, (self._now(), self._usage())
        now, (busy, own) = self._last
        if now <= before or own is None or own_before is None or self._cores is None:
            return None
        mine, all_of_it = max(0.0, own - own_before), max(0.0, busy - busy_before)
        seconds = now - before
        return Load(own=mine / seconds, others=max(0.0, all_of_it - mine) / seconds, cores=self._cores)
