"""A record of what was served when, written by each process for itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ServiceLog:
    """Appends one JSON line per served call to a file of this process; `directory` None records nothing.

    Times are of the monotonic clock, which all processes of a machine share.
    """

    def __init__(self, directory: str | None) -> None:
        self._file = -1
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            path = Path(directory) / f"{os.getpid()}.jsonl"
            # A line is one write at the end of the file, which threads share and a dying process cannot tear.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def serving(self, kind: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Record the time inside the block; the block may add facts to what it is given."""
        began = time.monotonic()
        yield facts
        if self._file < 0:
            return
        line = json.dumps({"kind": kind, "began": began, "ended": time.monotonic(), **facts})
        os.write(self._file, (line + "\n").encode())


def read_services(directory: Path) -> list[dict[str, Any]]:
    """The records of all processes, in order of their ends, without lines that were cut off."""
    records = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                records.append(json.loads(line))
    return sorted(records, key=lambda record: float(record["ended"]))
