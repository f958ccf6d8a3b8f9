"""The end of a run on Ray, however it comes: recorded, and with no process left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import Ending, recorded, undisturbed
from rlinf_async.observe.failures import FaultCounts
from rlinf_async.observe.summary import RunSummary, Tally
from rlinf_async.ray_runtime.endings import START_AGAIN, is_echo, ray_ending_of
from rlinf_async.ray_runtime.launched import LaunchedRun
from rlinf_async.ray_runtime.ray_processes import dead_process
from rlinf_async.ray_runtime.remote_calls import Fleet
from rlinf_async.ray_runtime.revival import PROCESS_OF_GROUP
from rlinf_async.ray_runtime.termination import TERMINATION

DRAIN_TIMEOUT_S = 4.0
"""Seconds that an interrupted run waits for rollouts that have started, before it ends their processes."""
LEDGER_TIMEOUT_S = 3.0
"""Seconds that a run that has failed waits for its ledger; after that the last one that was read counts."""


class EndingInOrder:
    """Ends a run with the sum of its steps and its ledger in its directory.

    The driver adds each reported step to `tally`, and keeps in `ledger` what it has read last: the process
    that knows it may be the one that dies.
    """

    def __init__(self, fleet: Fleet, launched: LaunchedRun, *, display: RunDisplay) -> None:
        self._fleet, self._launched, self._display = fleet, launched, display
        self.tally, self.ledger = Tally(), Ledger()
        self.saved: int | None = launched.step if launched.checkpoint is not None else None
        """The step of the newest checkpoint that this run could go on from."""

    @contextmanager
    def __call__(self, loops: Callable[[], Sequence[Any]]) -> Iterator[None]:
        """On an interrupt `loops` of env workers may end for a moment; then, as on any failure, all end.

        Raises:
            RunFailed: the run has ended by an error, in one sentence.
            KeyboardInterrupt, Terminated: it was asked to end.
        """
        succeeded = False
        try:
            with recorded(lambda: self._launched.run_dir, judge=self._judge, summary=self._summary):
                try:
                    with TERMINATION.through_ray():
                        yield
                    succeeded = True
                except KeyboardInterrupt:
                    self._display.stop()
                    self._drain(loops())
                    raise
        finally:
            if not succeeded:
                TERMINATION.ignore_failures()
                # A second signal must not stop the kill half way: processes would be left over.
                with undisturbed():
                    self._display.stop()
                    self._fleet.kill()

    def _drain(self, loops: Sequence[Any]) -> None:
        if not loops or not ray.is_initialized():
            return
        self._display.note("interrupted: closing the gate, waiting for rollouts that have started")
        self._launched.coordinator.close_gate.remote()
        # Not through `Fleet.wait`, which would raise the failures of watched calls and end the drain.
        in_order = self._fleet.ended(loops, DRAIN_TIMEOUT_S)
        self._display.note("all rollouts have ended" if in_order else "ending rollouts that still run")

    def _judge(self, error: BaseException) -> Ending:
        if is_echo(error) and ray.is_initialized() and dead_process() is None:
            error = next(iter(self._fleet.deaths()), error)
        return ray_ending_of(error, names=self._fleet.names(PROCESS_OF_GROUP), again=self._again())

    def _again(self) -> str:
        if self.saved is None or not self._launched.resume:
            return START_AGAIN
        return f"{START_AGAIN} with {self._launched.resume}, which goes on from step {self.saved}"

    def _summary(self, faults: FaultCounts) -> RunSummary:
        if ray.is_initialized():
            # Whoever has died is named elsewhere; this takes what is known.
            with suppress(ray.exceptions.RayError):
                self.ledger = ray.get(
                    self._launched.coordinator.read_ledger.remote(), timeout=LEDGER_TIMEOUT_S
                )
        return self.tally.summary(self.ledger, faults)
