"""A process of a run, which shows its work: in a trace, to the driver, and as stacks for `status --stacks`.

Env workers, inference ranks, learner ranks, the request channel and the coordinator are such processes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

from rlinf_async import __version__
from rlinf_async.observe.faults import Fault, FaultKind, RecordFault, record_nothing
from rlinf_async.observe.holdings import held_by_this_process
from rlinf_async.observe.run_files import RunFiles
from rlinf_async.observe.spans import SpanLog, clock_offset, identity
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.wire.memory import machine
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.strangers import STRANGERS

ROUND_TRIPS = 8
"""The number of calls that ask another machine for its time; the shortest call counts."""


class RunProcess:
    """A process of a run, with its records, its clock and its answers to the driver."""

    generation: int = 0
    """The number of earlier processes in this place, which have died; see `core.restarts`."""
    _span_log: SpanLog | None = None
    own_name: str = ""
    """Its name in the records of the run, once it has joined."""
    note_fault: RecordFault = staticmethod(record_nothing)
    """Records a fault, once the process has joined a run."""

    @property
    def spans(self) -> SpanLog:
        """The log of the spans of this process; nothing is written before `join_run`."""
        if self._span_log is None:
            self._span_log = SpanLog(None)
        return self._span_log

    async def join_run(
        self, process: str, run_dir: str, *, clock: object = None, generation: int = 0
    ) -> None:
        """Record spans and faults as `process`, in this `generation`, by the clock of the actor `clock`.

        Without `clock` the process uses its own. Models and environments have been built when it joins,
        unless it replaces a process that has died.
        """
        exempt_present_objects()
        self.generation = generation
        offset = 0.0 if clock is None else await _offset(clock)
        self._span_log = SpanLog(RunFiles(run_dir).trace, process=process, offset=offset)
        answer_for_stacks(Path(run_dir), process)
        self.own_name, self.note_fault = process, RunFiles(run_dir).record
        STRANGERS.record_by(lambda *, error: self.remark(error, what="stranger"))

    async def go_on_as(self, generation: int, loop: str, *arguments: Any) -> Any:
        """Run the method `loop`, which lasts as long as the run, in the place of processes that have died.

        A process that has not joined as `generation` ends. In that case Ray has started it, between two
        calls, in place of the process that had joined: nothing is built in it, and its messages would be
        ignored as those of a dead process.
        """
        if generation != self.generation:
            end_this_process()
        return await getattr(self, loop)(*arguments)

    def remark(self, sentence: str, *, what: FaultKind) -> None:
        """Record an oddity, for example of the policy; the run goes on."""
        self.note_fault(Fault(process=self.own_name, what=what, error=sentence))

    async def plugin_version(self) -> str:
        """The version of this package that the process runs."""
        return __version__

    async def place(self) -> tuple[str, int]:
        """The machine and the process number of this process."""
        return machine(), os.getpid()

    async def node(self) -> str:
        """The node of this process, as Ray names it."""
        return this_node()

    async def read_clock(self) -> tuple[str, float]:
        """The machine, and its monotonic time in seconds."""
        return machine(), time.monotonic()

    async def doing(self) -> dict[str, Any]:
        """Return the open spans of this process, its counts and its memory, for `observe.reading.status`."""
        return {
            "machine": machine(),
            "pid": os.getpid(),
            **(identity(os.getpid()) or {}),
            "ended": self.spans.ended,
            "open": _plain(self.spans),
            # In a thread: this reads files in /proc of all processes that this one has started.
            "holds": await asyncio.to_thread(held_by_this_process),
            **self.facts(),
        }

    def facts(self) -> dict[str, Any]:
        """Return further facts for `doing`, by name; none by default."""
        return {}


def end_this_process() -> None:
    """End at once, so that Ray reports a death: an exception would look like an error of the method."""
    os._exit(1)


async def _offset(clock: Any) -> float:
    round_trips = []
    for _ in range(ROUND_TRIPS):
        sent_at = time.monotonic()
        machine_there, seconds = await clock.read_clock.remote()
        if machine_there == machine():
            return 0.0  # it is the same clock: a measured offset could only add an error
        round_trips.append((sent_at, seconds, time.monotonic()))
    return clock_offset(round_trips)


def _plain(spans: SpanLog) -> list[dict[str, Any]]:
    """Return the open spans, with lists replaced by their lengths."""
    return [
        {name: len(value) if isinstance(value, list) else value for name, value in span.items()}
        for span in spans.open_spans()
    ]


def exempt_present_objects() -> None:
    """Exempt the objects that this process holds now from later garbage collections.

    torch, transformers and a framework create some million objects, nearly all of them for good. A full
    collection visits each: 0.3 to 0.6 s, while no thread of the process runs Python. RLinf asks for one after
    every batch (`clear_memory`), and Python runs one when enough new objects have lived long.

    An exempt object is still freed when nothing refers to it any more. Only reference cycles among exempt
    objects stay until the next call: for example the first environments of a run, if they are rebuilt.
    """
    # First collect the cycles that have become garbage since the last call.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


SWITCH_S = 0.0005


def hand_over_quickly() -> None:
    """Have a computing thread hand the interpreter to a thread that wakes up within 0.5 ms.

    A request passes between the event loop and other threads four times on its way. Python's default lets a
    computing thread go on for 5 ms after another one wakes, which would be most of the time of a request.
    """
    sys.setswitchinterval(SWITCH_S)
