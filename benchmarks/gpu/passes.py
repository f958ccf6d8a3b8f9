"""Begin and end of the policy's passes on the device, and the share of a time window that they fill."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch

from rlinf_async.hosts.local.learner import LocalTraining
from rlinf_async.hosts.local.policy import ActorCritic

Span = tuple[float, float]


class Clock(Protocol):
    """Marks points in the work of a device; `seconds` reads a mark on the scale of `time.perf_counter`."""

    def mark(self) -> Any: ...

    def seconds(self, mark: Any) -> float: ...


class HostClock:
    """A clock for the CPU: work is done when the call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        return mark


class CudaClock:
    """A clock for a GPU: a mark is an event on the calling thread's current stream."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        torch.cuda.synchronize(self._device)
        self._zero = self.mark()
        self._zero.synchronize()
        self._began = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        mark.synchronize()
        return self._began + self._zero.elapsed_time(mark) / 1e3


class Passes:
    """Records the passes of runs on the local host: the policy's `act` and `score`, and micro-batches.

    Read `spans` after the runs: reading waits for the device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[str, Any, Any]] = []

    @contextmanager
    def recorded(self, policy: type[ActorCritic]) -> Iterator[None]:
        """Record the passes of runs of a `policy` inside the block."""
        with ExitStack() as stack:
            for owner, name in ((policy, "act"), (policy, "score"), (LocalTraining, "train_micro_batch")):
                stack.enter_context(patch.object(owner, name, self._timed(getattr(owner, name))))
            yield

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = self._clock.mark()
            result = work(*arguments, **options)
            # Threads are called after their work: `inference-0`, `learner`.
            who = threading.current_thread().name.partition("-")[0]
            self._marks.append((who, began, self._clock.mark()))
            return result

        return timed

    def spans(self, *names: str) -> list[Span]:
        """Return (begin, end) in seconds of the passes with one of `names`: `inference` or `learner`."""
        seconds = self._clock.seconds
        return [(seconds(began), seconds(ended)) for name, began, ended in self._marks if name in names]


def filled(spans: Iterable[Span], window: Span) -> float:
    """Return the share of `window` that the union of `spans` covers."""
    low, high = window
    total, reached = 0.0, low
    for began, ended in sorted(spans):
        start, stop = max(began, reached), min(ended, high)
        if stop > start:
            total += stop - start
            reached = stop
    return total / (high - low)
