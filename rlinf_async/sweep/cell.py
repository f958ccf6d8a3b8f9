"""One run of a sweep: a setting and a seed, in a process and a directory of its own."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rlinf_async.sweep.process import run_apart
from rlinf_async.sweep.settings import Setting
from rlinf_async.sweep.steps import Measurement, read_own, read_stock
from rlinf_async.sweep.workload import Workload

TRAIN = (sys.executable, "-m", "rlinf_async.cli", "train")
RECORD = "cell.json"
TAIL = 100_000
"""Bytes at the end of a log in which its error is looked for."""
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ERROR = re.compile(r"(?:\([^)]*\)\s*)?(?:error:|(?:\w+\.)*\w*(?:Error|Exception)\b)")
LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is kept of a run that has ended, beside what the run itself has written."""

    status: Literal["done", "failed"]
    seconds: float
    exit_status: int
    error: str | None
    overrides: tuple[str, ...]
    config: str
    """A digest of the config without them."""

    @classmethod
    def read(cls, directory: Path) -> Record | None:
        path = directory / RECORD
        if not path.exists():
            return None
        plain = json.loads(path.read_text())
        return cls(**{**plain, "overrides": tuple(plain["overrides"])})

    def write(self, directory: Path) -> None:
        """Whole or not at all."""
        draft = directory / f"{RECORD}.draft"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        draft.rename(directory / RECORD)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run; `source` are the options that name the config, `config` is a digest of it."""

    setting: Setting
    seed: int
    source: tuple[str, ...]
    overrides: tuple[str, ...]
    config: str
    workload: Workload
    sweep: Path
    """The directory of the sweep."""

    @property
    def name(self) -> str:
        return f"{self.setting.name} seed {self.seed}"

    @property
    def directory(self) -> Path:
        return self.sweep / f"{self.setting.name}-seed{self.seed}"

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    @property
    def command(self) -> tuple[str, ...]:
        place = str(self.directory.absolute()).replace("'", r"\'")
        return (*TRAIN, *self.source, *self.overrides, f"runner.logger.log_path='{place}'")

    def record(self) -> Record | None:
        """Of the last run, if it was of what this cell asks for."""
        record = Record.read(self.directory)
        return record if record is not None and not self._differs(record) else None

    @property
    def done(self) -> bool:
        record = self.record()
        return record is not None and record.status == "done"

    @property
    def changed(self) -> bool:
        """Whether the last run was of other overrides or another config."""
        record = Record.read(self.directory)
        return record is not None and self._differs(record)

    def _differs(self, record: Record) -> bool:
        return (record.overrides, record.config) != (self.overrides, self.config)

    def run(self) -> Record:
        """Run it, from an empty directory, and keep a record; an interrupted run leaves none."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        began = time.monotonic()
        status = run_apart(self.command, self.log)
        error = self._error(status)
        record = Record(
            status="done" if error is None else "failed",
            seconds=round(time.monotonic() - began, 3),
            exit_status=status,
            error=error,
            overrides=self.overrides,
            config=self.config,
        )
        record.write(self.directory)
        return record

    def measure(self) -> Measurement:
        """What the run amounts to.

        Raises:
            ValueError: it has left nothing that can be measured.
        """
        if self.setting.active:
            return Measurement.of(read_own(self.directory))
        return Measurement.of(
            read_stock(self.directory, env_steps=self.workload.env_steps, stages=self.workload.stages)
        )

    def _error(self, status: int) -> str | None:
        if status:
            return f"exit status {status}: {last_words(self.log)}"
        try:
            self.measure()
        except ValueError as error:
            return str(error)
        return None


def last_words(log: Path) -> str:
    """The last line of a log that tells of an error, or else its last line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        text = COLOUR.sub("", file.read().decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["it has printed nothing"])[-1][:LONGEST]
