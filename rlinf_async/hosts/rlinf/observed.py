"""Workers that say what they do: in a trace, to the driver that asks, and as stacks to a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

from rlinf_async.core.spans import SpanLog, clock_offset
from rlinf_async.core.status import STACKS_SIGNAL

TRIPS = 8
"""Calls that ask another machine for its time; the shortest one counts."""


class Observed:
    """A worker of RLinf that takes part in a run which can be looked at from outside."""

    _observed: SpanLog | None = None

    @property
    def spans(self) -> SpanLog:
        """What this process does; nothing is written before `join_run`, or without a trace."""
        if self._observed is None:
            self._observed = SpanLog(None)
        return self._observed

    async def join_run(self, process: str, run_dir: str, *, trace: bool, clock: Any = None) -> None:
        """Record as `process`, on the clock of the actor `clock` (None: on our own)."""
        offset = 0.0 if clock is None else await _offset(clock)
        self._observed = SpanLog(Path(run_dir) / "trace" if trace else None, process=process, offset=offset)
        self._stacks = leave_stacks(Path(run_dir), process)

    async def read_clock(self) -> tuple[str, float]:
        """The machine, and its time in seconds since it has started."""
        return machine(), time.monotonic()

    async def doing(self) -> dict[str, Any]:
        """What this process does right now, and how much it has done; for `core.status`."""
        return {"pid": os.getpid(), "ended": self.spans.ended, "open": _plain(self.spans), **self.facts()}

    def facts(self) -> dict[str, Any]:
        """What else a worker knows about the run."""
        return {}


def leave_stacks(run_dir: Path, process: str) -> Any:
    """On a signal, write the stack of every thread into the run directory; the open file."""
    directory = run_dir / "stacks"
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / f"{process.replace(' ', '-')}-{os.getpid()}.txt").open("w")
    faulthandler.register(getattr(signal, STACKS_SIGNAL), file=file, all_threads=True)
    return file


def machine() -> str:
    """A name that the processes of one machine share, and no others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def _offset(clock: Any) -> float:
    trips = []
    for _ in range(TRIPS):
        sent = time.monotonic()
        theirs, seconds = await clock.read_clock.remote()
        if theirs == machine():
            return 0.0  # one clock: asking for it could only add an error
        trips.append((sent, seconds, time.monotonic()))
    return clock_offset(trips)


def _plain(spans: SpanLog) -> list[dict[str, Any]]:
    """Open spans without their lists: how many there are says enough."""
    return [
        {name: len(value) if isinstance(value, list) else value for name, value in span.items()}
        for span in spans.open_spans()
    ]
