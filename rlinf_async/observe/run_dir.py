"""The directory of a run: its files by name, written and read in one place."""

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
from rlinf_async.observe.files import append, read_regular, write_whole
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
"""The folder for files that earlier runs have left in the directory of a run."""
MAX_METRICS_BYTES = 512 << 20
FILE_SHAPES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "run.json": shapes.facts,
    "status.json": shapes.status,
    "summary.json": shapes.summary,
}


class RunDir:
    """The records of one run.

    Reading never fails, as a run may still be going on, or have crashed, or be another's: what is not there
    is empty, and so is what cannot be read or is of another shape than a run gives it, which `problems` names
    in sentences. What a run writes is private, and nothing is written or read through links.
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
        """The frames of the error by which the run has failed."""
        self.problems: list[str] = []

    @property
    def known_by(self) -> list[str]:
        """The names by any of which a run directory is known."""
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
        """Move what an earlier run has left here to `earlier/N`, a run directory like this one, and say so.

        Nothing is moved where no earlier run has trained anything. A run that `goes_on` where that one has
        ended adds to its metrics, its faults and its `weights`, which a host keeps in a folder of checkpoints
        or a file in this directory; otherwise they go, too.

        Raises:
            ValueError: the `weights` are somewhere else, perhaps by a link; nothing is moved.
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
        place.mkdir(parents=True)
        paths_to_move = [self.config, self.facts, self.summary, self.status, self.trace, self.traceback]
        if not goes_on:
            paths_to_move += [self.metrics, self.failures, self.tensorboard]
            paths_to_move += [weights] if weights is not None else []
        # A copy: the run that goes on adds to the file itself.
        elif self.metrics.is_file():
            shutil.copy2(self.metrics, place, follow_symlinks=False)
        for path in paths_to_move:
            # lexists: a link that leads nowhere moves, too, as nothing is written through it.
            if os.path.lexists(path):
                target = place / path.parent.resolve().relative_to(own_place) / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        say(f"what an earlier run has left in {self.path} is in {place} now")

    def check_inside(self, path: Path) -> None:
        """See whether `path` is a place in this directory, so that this run may change what is there.

        Raises:
            ValueError: it is not, perhaps by a link.
        """
        place = path.resolve()
        if not place.is_relative_to(self.path.resolve()):
            raise ValueError(
                f"{path} leads out of the run directory {self.path} ({place}): what is there is another's, "
                "and is not touched; choose a place inside of it, without .. and links"
            )

    def begin(
        self, facts: Mapping[str, Any], *, title: str, versions: Mapping[str, str], fresh: bool = True
    ) -> None:
        """Write the facts that a reader needs besides the config, the time, and the cores of this machine.

        The records of an earlier run go: its clock, its processes and its end are another's. Its faults stay
        if this run goes on where the earlier one has ended, and is not a `fresh` one.
        """
        for directory in (self.trace, self.stacks):
            shutil.rmtree(directory, ignore_errors=True)
        faults = [self.failures] if fresh else []
        for file in (self.status, self.summary, self.traceback, *faults):
            file.unlink(missing_ok=True)
        now = {"began": time.time(), "versions": dict(versions), "python": platform.python_version()}
        machine_facts = {"cores": _cores()}
        content = {"title": title, **now, **machine_facts, **facts}
        write_whole(self.facts, (json.dumps(content, indent=2) + "\n").encode())

    def write_config(self, text: str) -> None:
        """Write a config, as YAML, with `hidden` in the place of secrets."""
        write_whole(self.config, yaml_without_secrets(text).encode())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of a step, as plain numbers in the order of their names."""
        line = {"step": step, **{name: float(value) for name, value in sorted(metrics.items())}}
        with warning_of(self.metrics):
            append(self.metrics, (json.dumps(line) + "\n").encode())

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status in one move: a reader sees a whole file."""
        with warning_of(self.status):
            write_whole(self.status, json.dumps(status).encode())

    def write_step(self, step: int, total: int, **facts: Any) -> None:
        """The status of a run of which this process alone speaks, whenever a step has ended, with `facts`
        beside."""
        now = {"time": time.time(), "driver": os.getpid(), "still_s": 0.0}
        self.write_status({**now, "step": step, "total": total, "processes": {}, **facts})

    def write_summary(self, summary: Mapping[str, Any], *, ended: str = "finished", ending: str = "") -> None:
        """In one move; a run that has trained everything does not fail for want of room for it.

        Of a run that has `ended` otherwise than by its last step, `ending` says why in a sentence.
        """
        how = {"ended": ended, **({"ending": ending} if ending else {})}
        content = {**summary, **how}
        with warning_of(self.summary):
            write_whole(self.summary, (json.dumps(content, indent=2) + "\n").encode())

    def write_traceback(self, text: str) -> Path | None:
        """Write the frames of the error by which a run has failed; where they are, if there was room."""
        with warning_of(self.traceback):
            write_whole(self.traceback, text.encode(errors="replace"))
            return self.traceback.absolute()
        return None

    def read(self, file: Path) -> dict[str, Any]:
        """The content of a file of JSON or YAML."""
        is_yaml = file.suffix == ".yaml"
        text = self._text(file, MAX_YAML_BYTES if is_yaml else MAX_JSON_BYTES)
        try:
            content = (read_yaml(text) if is_yaml else read_json(text)) if text.strip() else {}
        except DamagedError as error:
            self.problems.append(f"{file.name} {error}, and is left out.")
            return {}
        if not isinstance(content, dict):
            self.problems.append(f"{file.name} does not hold what a run writes there, and is left out.")
            return {}
        return FILE_SHAPES[file.name](content) if content and file.name in FILE_SHAPES else content

    def read_metrics(self) -> list[dict[str, float]]:
        """The finite numbers of every step, in order; steps that were taken again are as they were last."""
        steps: list[dict[str, float]] = []
        bad = 0
        for line in self._text(self.metrics, MAX_METRICS_BYTES).splitlines():
            numbers = _numbers(line)
            if numbers is None:
                bad += 1
                continue
            while steps and steps[-1]["step"] >= numbers["step"]:
                steps.pop()  # the run was started again, perhaps from a checkpoint
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
    """A full disk, or a lack of memory, is no reason to end a run that only wanted to say how it goes."""
    try:
        yield
    except (OSError, MemoryError) as error:
        # 3: beyond this generator and contextlib stands whoever writes.
        warnings.warn(f"{path} cannot be written: {reason_of(error)}", stacklevel=3)


def reason_of(error: OSError | MemoryError) -> str:
    """Why a file cannot be written, in a few words."""
    return "no memory is left" if isinstance(error, MemoryError) else str(error.strerror or error)


def _cores() -> int | None:
    """Return the processor cores that this process may use; None if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _numbers(line: str) -> dict[str, float] | None:
    """The finite numbers of a line of metrics; None if it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    numbers = {name: value for name, value in record.items() if finite(value)}
    return numbers if "step" in numbers else None
