"""The directory of a sweep: of one sweep only, and of one process at a time."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IDENTITY = "sweep.json"


@dataclass(frozen=True)
class SweepDirectory:
    """Where a sweep keeps its runs; `identity` says which sweep that is."""

    path: Path
    identity: Mapping[str, Any]

    def check(self) -> None:
        """See whether the directory can be this sweep's, and touch nothing.

        Raises:
            ValueError: the place is taken by a file, another sweep or something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; choose a directory by --output")
        record = self.path / IDENTITY
        text = record.read_text() if record.exists() else ""
        if text:
            self._compare(json.loads(text))
        elif self.path.exists() and any(path != record for path in self.path.iterdir()):
            raise ValueError(
                f"{self.path} holds something that is no sweep; choose another --output, or an empty one"
            )

    def _compare(self, other: Mapping[str, Any]) -> None:
        for key, value in self.identity.items():
            if other.get(key) != value:
                raise ValueError(
                    f"{self.path} holds another sweep, with {key}={other.get(key)!r} instead of {value!r}; "
                    "choose another --output"
                )

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the directory this sweep's, and keep other processes from running it meanwhile.

        Raises:
            ValueError: another process does so.
        """
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / IDENTITY).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"another process is running the sweep in {self.path}") from error
            if not file.tell():
                file.write(json.dumps(self.identity, indent=2) + "\n")
                file.flush()
            yield
