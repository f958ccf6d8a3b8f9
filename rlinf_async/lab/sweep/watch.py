"""The progress of the run of a cell, in a terminal, while it goes on."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.status import Status

from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.observe.pace import clock
from rlinf_async.observe.run_dir import RunDir


class Watch:
    """A line that says the step and the time left of one run; only a terminal has it."""

    def __init__(self, cell: SweepCell, *, total: int, console: Console) -> None:
        self._records = RunDir(cell.directory)
        self._total = total
        self._status = Status(f"{cell.name}: starting", console=console) if console.is_terminal else None
        self._name = cell.name

    def __enter__(self) -> Watch:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def look(self) -> None:
        """Read what the run has written down, and say it."""
        if self._status is not None and (words := self.words()) is not None:
            self._status.update(words)

    def words(self) -> str | None:
        """`full seed 0: step 5/12, 0:21 left`; None before the first step has ended."""
        steps = self._records.read_metrics()
        if not steps:
            return None
        # The first step, which also fills the pipeline, takes longer than others.
        regular = steps[1:] or steps
        each = sum(step.get("async/step_seconds", 0.0) for step in regular) / len(regular)
        remaining = clock(each * max(0, self._total - len(steps)))
        return f"{self._name}: step {len(steps)}/{self._total}, {remaining} left"
