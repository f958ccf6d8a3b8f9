"""The records of a planned run, in the form in which a run writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rlinf_async import __version__
from rlinf_async.config import words
from rlinf_async.core.buffer import Ledger
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.meters import StepReport
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process, SpanLog
from rlinf_async.observe.summary import RunSummary


class Records:
    """The run directory of a planned run; without one nothing is written. Times are virtual seconds."""

    def __init__(self, path: Path | None, settings: RunSettings, *, now: Callable[[], float]) -> None:
        self._now = now
        self._logs: dict[str, SpanLog] = {}
        self._unrecorded = SpanLog(None, now=now)
        self._run_dir: RunDir | None = None
        if path is None:
            return
        make_directory(path)
        self._run_dir = RunDir(path)
        title = (
            f"rlinf-async {__version__}, planned: levels {words(settings.asynchrony.levels)}; "
            f"{settings.plan.shards} shards of {settings.plan.envs_per_shard} environments"
        )
        self._run_dir.begin(settings.facts(), title=title, versions={"rlinf-async": __version__})

    def log(self, process: Process, rank: int) -> SpanLog:
        """Return the log of the spans of a process."""
        if self._run_dir is None:
            return self._unrecorded
        name = process.numbered(rank) if process != Process.DRIVER else str(process)
        if name not in self._logs:
            self._logs[name] = SpanLog(self._run_dir.trace, process=name, now=self._now)
        return self._logs[name]

    def step(self, report: StepReport) -> None:
        """A batch is trained, and its version acts."""
        if self._run_dir is not None:
            self._run_dir.log(report.step, report.as_metrics())

    def end(self, reports: Sequence[StepReport], ledger: Ledger) -> None:
        """All batches are trained."""
        if self._run_dir is not None:
            self._run_dir.write_summary(RunSummary.of(reports, ledger).as_dict())
