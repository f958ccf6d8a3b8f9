"""The run directory: the one place that names, writes and reads its files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlinf_async.observe import shapes
from rlinf_async.observe.files import append, make_directory, read_regular, write_whole
from rlinf_async.observe.load import usable_cores
from rlinf_async.observe.plain_data import (
    MAX_JSON_BYTES,
    MAX_YAML_BYTES,
    DamagedError,
    finite,
    read_json,
    read_yaml,
)
from rlinf_async.observe.secrets import yaml_without_secrets

EARLIER_FOLDER = "earlier"
"""The folder, within a run directory, for the files of earlier runs."""
MAX_METRICS_BYTES = 512 << 20
FILE_SHAPES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "run.json": shapes.facts,
    "status.json": shapes.status,
    "summary.json": shapes.summary,
}


class RunDir:
    """The records of one run.

    Reading never fails, as a run may still go on, have crashed, or belong to another person. A missing file
    reads as empty, and so does a file that cannot be read or has the wrong shape, with a sentence in
    `problems`. Files are written for the own account only, and never written or read through links.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.config = path / "config.yaml"
        self.facts = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.status = path / "status.json"
        self.trace = path / "trace"
        self.tensorboard = path / "tensorboard"
        """The event files of the framework's own logger."""
        self.stacks = path / "stacks"
        self.failures = path / "failures.jsonl"
        self.traceback = path / "traceback.txt"
        """The traceback of the error that has ended the run."""
        self.problems: list[str] = []

    @property
    def known_by(self) -> list[str]:
        """The names of files and folders that identify a run directory; any of them is enough."""
        files = (
            self.config,
            self.facts,
            self.metrics,
            self.summary,
            self.status,
            self.trace,
            self.tensorboard,
        )
        return [file.name for file in files]

    def set_aside(
        self, *, goes_on: bool = False, weights: Path | None = None, say: Callable[[str], None]
    ) -> None:
        """Move the files of an earlier run to `earlier/N`, a run directory like this one, and `say` so.

        Nothing is moved if no earlier run has trained anything. A run that `goes_on` from the earlier one
        adds to its metrics, its faults and its `weights`, the host's file or folder of checkpoints in this
        directory; otherwise these are moved, too.

        Raises:
            ValueError: the `weights` are outside this directory, perhaps by a link; nothing is moved.
        """
        own_place = self.path.resolve()
        for path in (weights, self.path / EARLIER_FOLDER / "1"):
            if path is not None:
                self.check_inside(path.parent)
        has_trained = self.metrics.is_file() or (weights is not None and weights.exists())
        if not (has_trained and self.facts.is_file()):
            return
        number = 1
        while (place := self.path / EARLIER_FOLDER / str(number)).exists():
            number += 1
        make_directory(place, private=False)
        paths_to_move = [self.config, self.facts, self.summary, self.status, self.trace, self.traceback]
        if not goes_on:
            paths_to_move += [self.metrics, self.failures, self.tensorboard]
            paths_to_move += [weights] if weights is not None else []
        # A copy: the resumed run adds to the file itself.
        elif self.metrics.is_file():
            shutil.copy2(self.metrics, place, follow_symlinks=False)
        for path in paths_to_move:
            # lexists: a dangling link is moved, too, as nothing may be written through it.
            if os.path.lexists(path):
                target = place / path.parent.resolve().relative_to(own_place) / path.name
                make_directory(target.parent, private=False)
                path.rename(target)
        say(f"the files of an earlier run in {self.path} are in {place} now")

    def check_inside(self, path: Path) -> None:
        """Check that `path` is in this directory, so that this run may change it.

        Raises:
            ValueError: `path` leads out of this directory, perhaps by a link.
        """
        place = path.resolve()
        if not place.is_relative_to(self.path.resolve()):
            raise ValueError(
                f"{path} leads out of the run directory {self.path} ({place}), where this run changes "
                "nothing; choose a place inside the run directory, without .. and links"
            )

    def begin(
        self, facts: Mapping[str, Any], *, title: str, versions: Mapping[str, str], fresh: bool = True
    ) -> None:
        """Write run.json: the facts that readers need besides the config, the time, and this machine's cores.

        The records of an earlier run are removed, as their clock and processes are not this run's. Its faults
        are kept unless this run is `fresh`, which means that it does not resume the earlier one.
        """
        for directory in (self.trace, self.stacks):
            shutil.rmtree(directory, ignore_errors=True)
        faults = [self.failures] if fresh else []
        for file in (self.status, self.summary, self.traceback, *faults):
            file.unlink(missing_ok=True)
        now = {"began": time.time(), "versions": dict(versions), "python": platform.python_version()}
        machine_facts = {"cores": usable_cores()}
        content = {"title": title, **now, **machine_facts, **facts}
        write_whole(self.facts, (json.dumps(content, indent=2) + "\n").encode())

    def change_facts(self, **facts: Any) -> None:
        """Change some facts in run.json, or add them, while the run goes on."""
        with warning_of(self.facts):
            content = {**self.read(self.facts), **facts}
            write_whole(self.facts, (json.dumps(content, indent=2) + "\n").encode())

    def write_config(self, text: str) -> None:
        """Write the config, as YAML, with `hidden` in place of secrets."""
        write_whole(self.config, yaml_without_secrets(text).encode())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of a step, as plain numbers in the order of their names."""
        line = {"step": step, **{name: float(value) for name, value in sorted(metrics.items())}}
        with warning_of(self.metrics):
            append(self.metrics, (json.dumps(line) + "\n").encode())

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status at once, so that a reader always sees a whole file."""
        with warning_of(self.status):
            write_whole(self.status, json.dumps(status).encode())

    def write_step(self, step: int, total: int, **facts: Any) -> None:
        """Write the status of a run without worker processes, after each step, with further `facts`."""
        now = {"time": time.time(), "driver": os.getpid(), "still_s": 0.0}
        self.write_status({**now, "step": step, "total": total, "processes": {}, **facts})

    def write_summary(self, summary: Mapping[str, Any], *, ended: str = "finished", ending: str = "") -> None:
        """Write the summary at once; a full disk is only a warning, as the run has ended.

        `ended`: how the run has ended. `ending`: the reason in a sentence, unless it has finished.
        """
        how = {"ended": ended, **({"ending": ending} if ending else {})}
        content = {**summary, **how}
        with warning_of(self.summary):
            write_whole(self.summary, (json.dumps(content, indent=2) + "\n").encode())

    def write_traceback(self, text: str) -> Path | None:
        """Write the traceback of a failed run; return its file, or None if it could not be written."""
        with warning_of(self.traceback):
            write_whole(self.traceback, text.encode(errors="replace"))
            return self.traceback.absolute()
        return None

    def read(self, file: Path) -> dict[str, Any]:
        """Return the content of a JSON or YAML file; empty if it is missing or damaged."""
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
        return FILE_SHAPES[file.name](content) if content and file.name in FILE_SHAPES else content

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the finite numbers of every step, in order; for a repeated step, those of the last time."""
        steps: list[dict[str, float]] = []
        bad = 0
        for line in self._text(self.metrics, MAX_METRICS_BYTES).splitlines():
            numbers = _numbers(line)
            if numbers is None:
                bad += 1
                continue
            while steps and steps[-1]["step"] >= numbers["step"]:
                steps.pop()  # the run was restarted, perhaps from a checkpoint
            steps.append(numbers)
        if bad:
            lines, are = ("1 line", "is") if bad == 1 else (f"{bad} lines", "are")
            self.problems.append(f"{lines} of {self.metrics.name} cannot be read and {are} left out.")
        return steps

    def _text(self, file: Path, limit: int) -> str:
        try:
            return read_regular(file, limit=limit).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            self.problems.append(f"{file.name} cannot be read ({error.strerror}).")
            return ""


@contextmanager
def warning_of(path: Path) -> Iterator[None]:
    """A block where a full disk or a lack of memory is a warning: a missing record must not end a run."""
    try:
        yield
    except (OSError, MemoryError) as error:
        # 3: the caller's line, beyond this generator and contextlib.
        warnings.warn(f"{path} cannot be written: {reason_of(error)}", stacklevel=3)


def reason_of(error: OSError | MemoryError) -> str:
    """Return why a file cannot be written, in a few words."""
    return "no memory is left" if isinstance(error, MemoryError) else str(error.strerror or error)


def _numbers(line: str) -> dict[str, float] | None:
    """Return the finite numbers of a line of metrics; None if the line is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    numbers = {name: value for name, value in record.items() if finite(value)}
    return numbers if "step" in numbers else None
