"""Reads the files of a run directory, which may be damaged or foreign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from rlinf_async.observe.events import Status, StepReport
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.load import torch_is_for_cpu
from rlinf_async.observe.read_files import (
    MAX_JSON_BYTES,
    DamagedError,
    finite,
    read_json,
    read_regular,
    records_of,
)
from rlinf_async.observe.reading import shapes
from rlinf_async.observe.reading.faults import recorded_faults
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import RunState
from rlinf_async.observe.yaml_data import MAX_YAML_BYTES, read_yaml

MAX_METRICS_BYTES = 512 << 20


class RunReader:
    """The records of one run, read without ever failing.

    A run may still go on, have crashed, or belong to another person. A missing file reads as empty, and so
    does one that cannot be read or has the wrong shape; `problems` has a sentence on each of these. Nothing
    is read through links.
    """

    def __init__(self, path: str | Path) -> None:
        self.places = RunDir(path)
        self.problems: list[str] = []

    def config(self) -> dict[str, Any]:
        """Return the config; if the run has left none, that of the framework's own logger."""
        places = self.places
        return self._read(places.config) or self._read(places.tensorboard / places.config.name)

    def facts(self) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return shapes.facts(self._read(self.places.facts))

    def status(self) -> Status | None:
        """Return the content of `status.json`; None if there is none, or it lacks time or steps."""
        return shapes.status(self._read(self.places.status))

    def summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`."""
        return shapes.summary(self._read(self.places.summary))

    def metrics(self) -> list[dict[str, float]]:
        """Return the finite numbers of every step, in order; for a repeated step, those of the last time."""
        steps: list[dict[str, float]] = []
        lines = self._text(self.places.metrics, MAX_METRICS_BYTES).splitlines()
        records = [_numbers(record) for record in records_of(lines)]
        for numbers in records:
            if "step" not in numbers:
                continue
            while steps and steps[-1]["step"] >= numbers["step"]:
                steps.pop()  # the run was restarted, perhaps from a checkpoint
            steps.append(numbers)
        self._note_lost(self.places.metrics, len(lines) - sum("step" in numbers for numbers in records))
        return steps

    def state(self) -> RunState:
        """Return the state after all recorded steps and faults."""
        return state_of(self.facts(), self.metrics(), self.faults())

    def faults(self) -> list[Fault]:
        """Return the faults, with those of earlier attempts, in the order of the record."""
        found = list(recorded_faults(self.places))
        self._note_lost(self.places.failures, found.count(None))
        return [fault for fault in found if fault is not None]

    def _note_lost(self, file: Path, lines: int) -> None:
        if lines:
            words, are = ("1 line", "is") if lines == 1 else (f"{lines} lines", "are")
            self.problems.append(f"{words} of {file.name} cannot be read and {are} left out.")

    def _read(self, file: Path) -> dict[str, Any]:
        """Return the content of a JSON or YAML file."""
        is_yaml = file.suffix == ".yaml"
        text = self._text(file, MAX_YAML_BYTES if is_yaml else MAX_JSON_BYTES)
        try:
            content = (read_yaml(text) if is_yaml else read_json(text)) if text.strip() else {}
        except DamagedError as error:
            self.problems.append(f"{file.name} {error}, and is left out.")
            return {}
        if not isinstance(content, dict):
            self.problems.append(f"{file.name} has content that no run has written, and is left out.")
            return {}
        return content

    def _text(self, file: Path, limit: int) -> str:
        try:
            return read_regular(file, limit=limit).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            self.problems.append(f"{file.name} cannot be read ({error.strerror}).")
            return ""


def state_of(
    facts: Mapping[str, Any], metrics: Iterable[Mapping[str, float]], faults: Iterable[Fault] = ()
) -> RunState:
    """Return the state of a run after all steps of `metrics` and all `faults`; `facts` are of its
    `run.json`.
    """
    versions = facts.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else None
    on_cpu = isinstance(torch, str) and torch_is_for_cpu(torch)
    return RunState.of(chain(map(StepReport.from_metrics, metrics), faults), on_cpu=on_cpu)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if finite(value)}
