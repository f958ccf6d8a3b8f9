"""A process of a run, which says what it does: in a trace, to the driver, as stacks for `status --stacks`.

Env workers, inference ranks, learner ranks, the request channel and the coordinator are such processes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_async import __version__
from rlinf_async.observe.failures import record_failure
from rlinf_async.observe.resources import held_by_this_process
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SpanLog, clock_offset, identity
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.wire.memory import machine
from rlinf_async.wire.strangers import STRANGERS

ROUND_TRIPS = 8
"""Calls that ask another machine for its time; the shortest one counts."""


class RunProcess:
    """A process that takes part in a run which can be looked at from outside."""

    generation: int = 0
    """The life of this process: how often it had died before; see `core.restarts`."""
    _span_log: SpanLog | None = None
    _remark: Callable[..., None] | None = None

    @property
    def spans(self) -> SpanLog:
        """The log of the spans of this process; nothing is written before `join_run`."""
        if self._span_log is None:
            self._span_log = SpanLog(None)
        return self._span_log

    async def join_run(
        self, process: str, run_dir: str, *, clock: object = None, generation: int = 0
    ) -> None:
        """Record as `process`, on the clock of the actor `clock` (None: on our own), in this `generation`.

        Whatever the process is made of has been built when it joins.
        """
        exempt_present_objects()
        self.generation = generation
        offset = 0.0 if clock is None else await _offset(clock)
        self._span_log = SpanLog(RunDir(run_dir).trace, process=process, offset=offset)
        answer_for_stacks(Path(run_dir), process)
        record = partial(record_failure, Path(run_dir), process=process, action="the run goes on")
        STRANGERS.record_by(partial(record, what="stranger"))
        self._remark = partial(record, what="odd policy")

    def remark(self, sentence: str) -> None:
        """Record what is odd about the policy of the run, which goes on."""
        if self._remark is not None:
            self._remark(error=sentence)

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
        """Return the work of this process right now, and counts of its past work; for `observe.status`."""
        return {
            "machine": machine(),
            "pid": os.getpid(),
            **(identity(os.getpid()) or {}),
            "ended": self.spans.ended,
            "open": _plain(self.spans),
            # In a thread: it reads the files of all processes that this one has started.
            "holds": await asyncio.to_thread(held_by_this_process),
            **self.facts(),
        }

    def facts(self) -> dict[str, Any]:
        """Numbers that a kind of worker adds to its activity, by name; none by default."""
        return {}


async def _offset(clock: Any) -> float:
    round_trips = []
    for _ in range(ROUND_TRIPS):
        sent_at = time.monotonic()
        machine_there, seconds = await clock.read_clock.remote()
        if machine_there == machine():
            return 0.0  # one clock: asking for it could only add an error
        round_trips.append((sent_at, seconds, time.monotonic()))
    return clock_offset(round_trips)


def _plain(spans: SpanLog) -> list[dict[str, Any]]:
    """Open spans without their lists: how many there are says enough."""
    return [
        {name: len(value) if isinstance(value, list) else value for name, value in span.items()}
        for span in spans.open_spans()
    ]


def exempt_present_objects() -> None:
    """Leave the objects that this process holds now out of every later search for garbage.

    torch, transformers and a framework leave some million objects behind, nearly all of them for good. A
    full collection looks at each: 0.3 to 0.6 s, in which no thread of the process runs Python. RLinf asks
    for one after every batch (`clear_memory`), and Python makes one when enough new objects have lived long.

    An object that is kept is freed as ever when nothing refers to it any more. Only an object that refers to
    itself in a circle, and is dropped later, stays until the next call: the first environments of a run, say,
    if they are rebuilt.
    """
    # First: what has died in a circle since the last call is found now.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


SWITCH_S = 0.0005


def hand_over_quickly() -> None:
    """Let a thread that wakes up have the interpreter soon.

    A trip of a request passes between the event loop and other threads four times. Python lets a thread
    that computes go on for 5 ms when another one wakes, which would be most of the trip.
    """
    sys.setswitchinterval(SWITCH_S)


SEED_STRIDE = 15_485_863
"""Distance between the seeds of two versions: a prime that no number of ranks reaches."""


def seed_everything(seed: int) -> None:
    """Seed what models sample with: those that match flows draw the denoise step from `random`."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


LEARNER_SEEDS = 1_000_003
"""Distance between the seeds of inference ranks and those of learner ranks: more than there are of either."""


def learner_seed(seed: int, rank: int) -> int:
    """Return the seed from which a learner rank draws: no other process of a run with this `seed` has it."""
    return seed + LEARNER_SEEDS + 1 + rank


def seed_version(seed: int, version: int) -> None:
    """Seed what is sampled by, or from, one version of the policy: whatever was sampled before it."""
    # numpy takes no larger seed.
    seed_everything((seed + SEED_STRIDE * version) % 2**32)
