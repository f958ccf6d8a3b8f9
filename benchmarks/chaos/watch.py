"""Memory, open files and disk of a run, read from outside of its processes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.observe.run_dir import RunDir

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Memory, open files and disk of a run at one moment."""

    step: int
    seconds: float
    memory: dict[str, float]
    """Resident memory in MB, by process."""
    files: dict[str, int]
    """Number of open files, by process."""
    metrics: int
    """Bytes of metrics.jsonl."""
    trace: int
    """Bytes of trace files."""
    other: int
    """Bytes of all other files of the run directory, without TensorBoard's."""
    tensorboard: int = 0


class Watch:
    """Takes samples of a process, its descendants, and its run directory."""

    def __init__(self, pid: int, run_dir: Path) -> None:
        self._pid, self._run = pid, RunDir(run_dir)
        self._began = time.monotonic()
        self.titles: dict[str, str] = {}
        """The last known title of each process, by pid."""
        self._steps = self._read = 0

    def look(self) -> Sample:
        memory: dict[str, float] = {}
        files: dict[str, int] = {}
        for pid in family(self._pid):
            with suppress(OSError, IndexError):  # the process may end meanwhile
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                if pages:  # a zombie has none
                    files[str(pid)] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                    memory[str(pid)] = round(pages * PAGE_BYTES / 1e6, 1)
                    self.titles[str(pid)] = title_of(Path(f"/proc/{pid}/cmdline").read_text())
        metrics, trace = _bytes(self._run.metrics), _bytes(self._run.trace)
        tensorboard = _bytes(self._run.tensorboard)
        return Sample(
            step=self._step(),
            seconds=round(time.monotonic() - self._began, 1),
            memory=memory,
            files=files,
            metrics=metrics,
            trace=trace,
            tensorboard=tensorboard,
            other=_bytes(self._run.path) - metrics - trace - tensorboard,
        )

    def _step(self) -> int:
        with suppress(FileNotFoundError), self._run.metrics.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            self._steps += new.count(b"\n")
        return self._steps


def title_of(command: str) -> str:
    """Return a short title for a command line: the program, or `ray::CLASS` of a Ray worker's title.

    For Python the title is the script or the module that runs, if there is one.
    """
    words = command.split("\0")
    if words[0].startswith("ray::"):
        return words[0].split(".")[0]
    program = Path(words[0].split(" ")[0]).name or "gone"
    if not program.startswith("python"):
        return program
    script = next((Path(word).name for word in words[1:] if word.endswith(".py")), None)
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else None
    return module or script or program


def family(pid: int) -> list[int]:
    """Return the pids of a process and of all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def _bytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total
