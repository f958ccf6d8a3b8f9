"""The log of a run, as its driver keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.reading.faults import count_faults
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import RunState


class RunLog:
    """Takes each step once: adds it to the state of the run, writes it, and shows it."""

    def __init__(
        self,
        records: RunDir,
        *,
        display: RunDisplay | None = None,
        loggers: Callable[[int, Mapping[str, float]], object] = lambda batch, metrics: None,
    ) -> None:
        """`loggers` are those of a framework: called with each batch, from 0, and its metrics, they must not
        raise errors.
        """
        self.state = RunState()
        self._records, self._display, self._loggers = records, display, loggers

    def step(self, report: StepReport, *metrics: Mapping[str, float]) -> None:
        """Log a step: `metrics` of training, episodes and evaluation, and those of `report`, under the same
        names on every host.
        """
        named = {name: value for each in (*metrics, report.as_metrics()) for name, value in each.items()}
        # Batch `step - 1` has made version `step`.
        self._loggers(report.step - 1, named)
        self._records.log(report.step, named)
        self.state.add(report)
        if self._display is not None:
            self._display.step(report, self.state)

    def finish(self, ledger: Ledger) -> None:
        """Log the end of a run that has trained its last step."""
        self.state.ledger, self.state.faults = ledger, count_faults(self._records.path)
        self._records.write_summary(self.state.summary())
        if self._display is not None:
            self._display.stop()
            self._display.summary(self.state, str(self._records.path))
