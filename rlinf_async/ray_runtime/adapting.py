"""A run of several processes that follows its measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.core.guesses import Limits
from rlinf_async.loops.adapting import Adapting
from rlinf_async.loops.learner import WAITING
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import StepReport
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.remote_calls import Fleet
from rlinf_async.ray_runtime.reporting import TrainedStep


class Adapter:
    """Asks `loops.adapting` after each step, and brings what has changed to gate and request channel."""

    def __init__(self, fleet: Fleet, settings: RunSettings, *, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._adapting = Adapting(settings, say=say)

    def as_metrics(self) -> dict[str, float]:
        """What holds now."""
        return self._adapting.as_metrics()

    def known(self) -> dict[str, Any] | None:
        """What belongs into a checkpoint."""
        return self._adapting.known()

    def resume(self, known: dict[str, Any] | None) -> None:
        """Go on with what a checkpoint has, before any process has begun."""
        self._apply(self._adapting.resume(known))

    def closing(self, run_dir: str) -> str | None:
        """A line for the end of the run, if there is something to say."""
        return self._adapting.closing(run_dir)

    def after(self, trained: TrainedStep, report: StepReport, spans: SpanLog) -> None:
        """`report` is of the step `trained`; the next one goes on meanwhile."""
        if not self._adapting.enabled:
            return
        limits = self._adapting.after(
            report,
            waited=max(rank.get(WAITING, 0.0) for rank in trained.learners),
            held_back=self._fleet.run("coordinator", "pop_held_back")[0],
            spans=spans,
            disturbed=bool(trained.evaluation) or any(report.restarts.values()),
        )
        self._apply(limits)

    def _apply(self, limits: Limits | None) -> None:
        if limits is not None:
            self._fleet.run("coordinator", "limit_staleness", limits.max_staleness)
            self._fleet.run("requests", "limit_batches", limits.max_batch_size, limits.max_wait_s)
