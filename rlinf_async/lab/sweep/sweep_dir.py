"""The directory of a sweep: of one sweep only, and of one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.observe.files import open_regular, read_regular
from rlinf_async.observe.plain_data import MAX_JSON_BYTES, DamagedError, read_json

IDENTITY_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepDirectory:
    """The directory of a sweep's runs; `identity` says which sweep that is."""

    path: Path
    identity: Mapping[str, Any]

    def check(self) -> None:
        """See whether the directory can be this sweep's, and touch nothing.

        Raises:
            ValueError: the place is taken by a file, another sweep or something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; choose a directory by --output")
        record = self.path / IDENTITY_FILE
        if (other := self._read(record)) is not None:
            self._compare(other)
        elif self.path.exists() and any(path != record for path in self.path.iterdir()):
            raise ValueError(
                f"{self.path} holds something that is no sweep; choose another --output, or an empty one"
            )

    def _read(self, record: Path) -> Mapping[str, Any] | None:
        """Return the identity of the sweep in the directory; None where there is none, or its begin was
        cut short.
        """
        try:
            text = read_regular(record, limit=MAX_JSON_BYTES).decode(errors="replace")
            content = read_json(text) if text else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{record} cannot be read: {error.strerror}; choose another --output") from error
        except DamagedError as error:
            raise ValueError(f"{record} {error}; choose another --output") from error
        if content is not None and not isinstance(content, dict):
            raise ValueError(f"{record} says of no sweep which it is; choose another --output")
        return content

    def _compare(self, other: Mapping[str, Any]) -> None:
        for key, value in self.identity.items():
            if other.get(key) != value:
                raise ValueError(
                    f"{self.path} holds another sweep, with {key}={other.get(key)!r} instead of {value!r}; "
                    "choose another --output"
                )

    def _opened(self) -> int:
        record = self.path / IDENTITY_FILE
        try:
            return open_regular(record, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(
                f"{record} cannot be written: {error.strerror}; choose another --output"
            ) from error

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the directory this sweep's, and keep other processes from running it meanwhile.

        Raises:
            ValueError: another process does so.
        """
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with os.fdopen(self._opened(), "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"another process is running the sweep in {self.path}") from error
            if not file.tell():
                file.write(json.dumps(self.identity, indent=2) + "\n")
                file.flush()
            yield
