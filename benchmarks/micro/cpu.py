"""The CPU time of a measurement, in all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def cpu_seconds(spent: list[float]) -> Iterator[None]:
    """Appends the CPU time of this process and its children, which here is Ray and all its workers."""
    before = _cpu_so_far()
    yield
    after = _cpu_so_far()
    spent.append(sum(seconds - before.get(process, 0.0) for process, seconds in after.items()))


def _cpu_so_far() -> dict[psutil.Process, float]:
    me = psutil.Process()
    times = {process: process.cpu_times() for process in (me, *me.children(recursive=True))}
    return {process: spent.user + spent.system for process, spent in times.items()}
