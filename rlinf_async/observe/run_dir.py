"""The records of a run that its driver writes; `run_files.RunFiles` names them, and records faults.

`reading.run_reader.RunReader` reads them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlinf_async.observe.events import Ending, Status
from rlinf_async.observe.files import append, make_directory, write_whole
from rlinf_async.observe.load import usable_cores
from rlinf_async.observe.read_files import DamagedError, read_json_file
from rlinf_async.observe.run_files import RunFiles, warning_of
from rlinf_async.observe.secrets import said_without_secrets, yaml_without_secrets

EARLIER_FOLDER = "earlier"
"""The folder, within a run directory, for the files of earlier runs."""


class RunDir(RunFiles):
    """The records of one run, written for the own account only, and never through links."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._facts: dict[str, Any] = {}

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
        directory; otherwise these are moved, too. Without the facts of an earlier run, files with these names
        do not belong to a run, and are moved as well: the run would write over them.

        Raises:
            ValueError: the `weights` are outside this directory, perhaps by a link; nothing is moved.
        """
        own_place = self.path.resolve()
        for path in (weights, self.path / EARLIER_FOLDER / "1"):
            if path is not None:
                self.check_inside(path.parent)
        is_ours = self._is_ours()
        has_trained = self.metrics.is_file() or (weights is not None and weights.exists())
        paths_to_move = self._written_over(goes_on=goes_on, weights=weights)
        if not paths_to_move or (is_ours and not has_trained):
            return
        foreign = f"{', '.join(path.name for path in paths_to_move)}, which no run has recorded"
        number = 1
        while (place := self.path / EARLIER_FOLDER / str(number)).exists():
            number += 1
        make_directory(place, private=False)
        # A copy: the resumed run adds to the file itself.
        if goes_on and self.metrics.is_file():
            shutil.copy2(self.metrics, place, follow_symlinks=False)
        for path in paths_to_move:
            target = place / path.parent.resolve().relative_to(own_place) / path.name
            make_directory(target.parent, private=False)
            path.rename(target)
        say(f"{'the files of an earlier run' if is_ours else foreign} in {self.path} are in {place} now")

    def _is_ours(self) -> bool:
        """Return True if `begin` has written the facts in this directory."""
        try:
            facts = read_json_file(self.facts)
        except (OSError, DamagedError):
            return False
        return isinstance(facts, dict) and {"title", "began"} <= facts.keys()

    def _written_over(self, *, goes_on: bool, weights: Path | None) -> list[Path]:
        """Return the paths that a run in this directory would write over, and that are there."""
        paths = [self.config, self.facts, self.summary, self.status, self.trace, self.stacks, self.traceback]
        if not goes_on:
            paths += [self.metrics, self.failures]
            # Without our record these folders are the framework's, which adds to them.
            added_to = [self.tensorboard] if weights is None else [self.tensorboard, weights]
            paths += [path for path in added_to if os.path.lexists(self.facts) or not path.is_dir()]
        # lexists: a dangling link is moved, too, as nothing may be written through it.
        return [path for path in paths if os.path.lexists(path)]

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
        self._facts = {"title": title, **now, **machine_facts, **facts}
        write_whole(self.facts, _indented(self._facts))

    def change_facts(self, **facts: Any) -> None:
        """Change facts that `begin` of this object has written, or add some, while the run goes on."""
        self._facts |= facts
        with warning_of(self.facts):
            write_whole(self.facts, _indented(self._facts))

    def write_config(self, text: str) -> None:
        """Write the config, as YAML, with `hidden` in place of secrets."""
        write_whole(self.config, yaml_without_secrets(text).encode())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of a step, as plain numbers in the order of their names."""
        line = {"step": step, **{name: float(value) for name, value in sorted(metrics.items())}}
        with warning_of(self.metrics):
            append(self.metrics, (json.dumps(line) + "\n").encode())

    def write_status(self, status: Status) -> None:
        """Write the status at once, so that a reader always sees a whole file."""
        with warning_of(self.status):
            write_whole(self.status, json.dumps(vars(status)).encode())

    def write_step(self, step: int, total: int, **facts: Any) -> None:
        """Write the status of a run without worker processes, after each step, with further `facts`."""
        self.write_status(Status(time=time.time(), driver=os.getpid(), step=step, total=total, **facts))

    def write_summary(self, summary: Mapping[str, Any], ending: Ending | None = None) -> None:
        """Write the summary at once, with its `ending` if the run has ended before its last step; a full disk
        is only a warning.
        """
        content = {**summary, "ended": "finished" if ending is None else ending.how}
        if ending is not None:
            content["ending"] = said_without_secrets(str(ending))
        with warning_of(self.summary):
            write_whole(self.summary, _indented(content))

    def write_traceback(self, text: str) -> Path | None:
        """Write the traceback of a failed run; return its file, or None if it could not be written."""
        with warning_of(self.traceback):
            write_whole(self.traceback, said_without_secrets(text).encode(errors="replace"))
            return self.traceback.absolute()
        return None


def _indented(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
