"""Workers that say what they do: in a trace, to the driver that asks, and as stacks to `status --stacks`."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from rlinf_async import __version__
from rlinf_async.observe.processes import identity
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SpanLog, clock_offset
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.ray_runtime.garbage import exempt_present_objects

ROUND_TRIPS = 8
"""Calls that ask another machine for its time; the shortest one counts."""


class Inspectable:
    """A process that takes part in a run which can be looked at from outside."""

    generation: int = 0
    """The life of this process: how often it had died before; see `core.generations`."""
    _observed: SpanLog | None = None

    @property
    def spans(self) -> SpanLog:
        """The log of the spans of this process; nothing is written before `join_run`."""
        if self._observed is None:
            self._observed = SpanLog(None)
        return self._observed

    async def join_run(
        self, process: str, run_dir: str, *, clock: object = None, generation: int = 0
    ) -> None:
        """Record as `process`, on the clock of the actor `clock` (None: on our own), in this `generation`.

        Whatever the process is made of has been built when it joins.
        """
        exempt_present_objects()
        self.generation = generation
        offset = 0.0 if clock is None else await _offset(clock)
        self._observed = SpanLog(RunDir(run_dir).trace, process=process, offset=offset)
        answer_for_stacks(Path(run_dir), process)

    async def plugin_version(self) -> str:
        """The version of this package that the process runs."""
        return __version__

    async def place(self) -> tuple[str, int]:
        """The machine of this process, and its number there."""
        return machine(), os.getpid()

    async def read_clock(self) -> tuple[str, float]:
        """The machine, and its time in seconds since it has started."""
        return machine(), time.monotonic()

    async def doing(self) -> dict[str, Any]:
        """Return the work of this process right now, and counts of its past work; for `observe.activity`."""
        return {
            "machine": machine(),
            "pid": os.getpid(),
            **(identity(os.getpid()) or {}),
            "ended": self.spans.ended,
            "open": _plain(self.spans),
            **self.facts(),
        }

    def facts(self) -> dict[str, Any]:
        """Numbers that a kind of worker adds to its activity, by name; none by default."""
        return {}


@cache
def machine() -> str:
    """A name that the processes of one machine share, and no others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def _offset(clock: Any) -> float:
    round_trips = []
    for _ in range(ROUND_TRIPS):
        sent = time.monotonic()
        machine_there, seconds = await clock.read_clock.remote()
        if machine_there == machine():
            return 0.0  # one clock: asking for it could only add an error
        round_trips.append((sent, seconds, time.monotonic()))
    return clock_offset(round_trips)


def _plain(spans: SpanLog) -> list[dict[str, Any]]:
    """Open spans without their lists: how many there are says enough."""
    return [
        {name: len(value) if isinstance(value, list) else value for name, value in span.items()}
        for span in spans.open_spans()
    ]
