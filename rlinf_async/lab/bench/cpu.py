"""CPU time of all processes of a run, measured while the run goes on."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROC_FOLDER = Path("/proc")
INTERVAL_S = 0.25
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Indices of the numbers of a machine in /proc/stat: user, nice, system, irq, softirq, steal."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The cores that a machine has used between two moments."""

    run_s: float
    """CPU seconds of the run's processes."""
    others: float
    """Cores that were busy with anything else, on average."""


class CpuMeter(AbstractContextManager["CpuMeter"]):
    """Samples the processes with `mark` in their environment four times a second.

    A process inherits the environment of its parent, so these are all processes of a run, including Ray's.
    CPU time that a process uses after its last sample is not counted.
    """

    def __init__(self, mark: str, *, proc: Path = PROC_FOLDER) -> None:
        """`mark` is `NAME=value`, as in the environment of a process."""
        self._mark = mark.encode()
        self._proc = proc
        self._is_marked: dict[tuple[str, str], bool] = {}
        self._used: dict[tuple[str, str], float] = {}
        self._looks: list[tuple[float, float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu meter")

    def __enter__(self) -> CpuMeter:
        if (self._proc / "stat").exists():  # Linux
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self, now: float) -> None:
        """Add the CPU time of all processes up to `now`, in seconds of the monotonic clock."""
        for path in self._proc.iterdir():
            if path.name.isdigit():
                self._look_at(path)
        numbers = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
        machine = sum(int(numbers[index]) for index in BUSY_FIELDS)
        self._looks.append((now, sum(self._used.values()), machine / _ticks()))

    def between(self, start: float, stop: float) -> Usage | None:
        """Return the usage from `start` to `stop`; None without samples before and after."""
        if len(self._looks) < 2 or self._looks[0][0] > start or self._looks[-1][0] < stop:
            return None
        times, run, machine = np.array(self._looks).T
        run_s = float(np.interp(stop, times, run) - np.interp(start, times, run))
        all_s = float(np.interp(stop, times, machine) - np.interp(start, times, machine))
        return Usage(run_s=run_s, others=max(0.0, all_s - run_s) / (stop - start))

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self.look(time.monotonic())

    def _look_at(self, path: Path) -> None:
        try:
            # The name of a process, in brackets, may hold anything.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            process = (path.name, fields[19])  # with the start time, as pids are reused
            if process not in self._is_marked:
                self._is_marked[process] = self._mark in (path / "environ").read_bytes().split(b"\0")
        except OSError:
            return  # the process has ended, or belongs to another account
        if self._is_marked[process]:
            self._used[process] = (int(fields[11]) + int(fields[12])) / _ticks()


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
