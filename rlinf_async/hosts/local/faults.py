"""Faults that a run in one process has outlived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlinf_async.observe.failures import record_failure
from rlinf_async.observe.processes import Process


class Faults:
    """Faults that a run has outlived: kept for its next report, and in its directory, if it has one."""

    def __init__(
        self, run_dir: Path | None, on_fault: Callable[[dict[str, Any]], None] = lambda fault: None
    ) -> None:
        self._run_dir, self._on_fault = run_dir, on_fault
        self._new: list[dict[str, Any]] = []

    def record(self, **facts: Any) -> None:
        """As `observe.failures.record_failure` of the one process that there is."""
        facts["process"] = Process.ENV.numbered(0)
        if self._run_dir is not None:
            record_failure(self._run_dir, **facts)
        fault = {name: fact for name, fact in facts.items() if fact is not None}
        self._new.append(fault)
        self._on_fault(fault)

    def pop(self) -> list[dict[str, Any]]:
        """The faults since the last call."""
        new, self._new = self._new, []
        return new
