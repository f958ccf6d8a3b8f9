"""One run of a sweep: a setting and a seed, in a separate process and directory."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rlinf_async.hosts.host import Workload
from rlinf_async.lab.outputs import write_json
from rlinf_async.lab.process import last_words, run_command
from rlinf_async.lab.sweep.settings import Setting
from rlinf_async.lab.sweep.steps import DEFAULT_GOAL, Averages, read_own, read_stock
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.read_files import DamagedError, read_json_file
from rlinf_async.observe.run_dir import RunDir

TRAIN_COMMAND = (sys.executable, "-m", "rlinf_async.cli", "train")
RECORD_FILE = "cell.json"
UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._+=-]+")
"""Characters to replace in the name of a directory."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The sweep's record of an ended run, beside the files of the run itself."""

    status: Literal["done", "failed"]
    seconds: float
    exit_status: int
    error: str | None
    overrides: tuple[str, ...]
    config: str
    """Digest of the config before the overrides."""

    @classmethod
    def read(cls, directory: Path) -> RunRecord | None:
        """Return the record in a directory; None without a record.

        Raises:
            ValueError: the file is no record.
        """
        path = directory / RECORD_FILE
        try:
            plain = read_json_file(path)
            return cls(**{**plain, "overrides": tuple(plain["overrides"])})
        except FileNotFoundError:
            return None
        except (OSError, DamagedError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no record of a run of a sweep; remove it to have that run again"
            ) from error

    def write(self, directory: Path) -> None:
        """Write the record atomically."""
        write_json(directory / RECORD_FILE, asdict(self))


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One run; `source` has the options that name the config, and `config` its digest."""

    setting: Setting
    seed: int
    source: tuple[str, ...]
    overrides: tuple[str, ...]
    config: str
    workload: Workload
    sweep: Path
    """The directory of the sweep."""
    goal: float = DEFAULT_GOAL
    """Success rate for the measures of time and environment steps to success."""

    @property
    def name(self) -> str:
        return f"{self.setting.name} seed {self.seed}"

    @property
    def directory(self) -> Path:
        return (
            self.sweep / f"{UNSAFE_CHARACTERS.sub('_', self.setting.name.replace(' ', '-'))}-seed{self.seed}"
        )

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    @property
    def command(self) -> tuple[str, ...]:
        directory = str(self.directory.absolute()).replace("'", r"\'")
        return (*TRAIN_COMMAND, *self.source, *self.overrides, f"{self.workload.run_dir}='{directory}'")

    def record(self) -> RunRecord | None:
        """The record of the last run, if it had this cell's overrides and config."""
        record = RunRecord.read(self.directory)
        return record if record is not None and not self._differs(record) else None

    @property
    def done(self) -> bool:
        record = self.record()
        return record is not None and record.status == "done"

    @property
    def changed(self) -> bool:
        """True if the last run had other overrides or another config."""
        record = RunRecord.read(self.directory)
        return record is not None and self._differs(record)

    def _differs(self, record: RunRecord) -> bool:
        return (record.overrides, record.config) != (self.overrides, self.config)

    def run(self, tick: Callable[[], None] | None = None) -> RunRecord:
        """Make the run in its emptied directory, and write its record; an interrupted run leaves no record.

        `tick` is called about once a second during the run.
        """
        shutil.rmtree(self.directory, ignore_errors=True)
        make_directory(self.directory, private=False)
        began = time.monotonic()
        status = run_command(self.command, self.log, tick=tick)
        error = self._error(status)
        record = RunRecord(
            status="done" if error is None else "failed",
            seconds=round(time.monotonic() - began, 3),
            exit_status=status,
            error=error,
            overrides=self.overrides,
            config=self.config,
        )
        record.write(self.directory)
        return record

    def measure(self) -> Averages:
        """Return the averages of the run.

        Raises:
            ValueError: the run has left no measurable steps.
        """
        stock = self.workload.stock
        if self.setting.active or stock is None or RunDir(self.directory).metrics.exists():
            return Averages.of(read_own(self.directory), goal=self.goal)
        steps = read_stock(self.directory, env_steps=stock.env_steps, stages=stock.stages)
        return Averages.of(steps, goal=self.goal)

    def _error(self, status: int) -> str | None:
        if status:
            return f"exit status {status}: {last_words(self.log)}"
        try:
            self.measure()
        except ValueError as error:
            return str(error)
        return None
