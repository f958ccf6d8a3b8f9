"""The results of an experiment, kept as they come: whoever is interrupted goes on where there is none yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a result to those in `path`, one a line."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows(path: Path) -> list[dict[str, Any]]:
    """The results in `path`, one a line; none where it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Kept:
    """What each run has come to, by its name, in a file of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Any) -> None:
        """Keep a result, a line of the file; one of this name is replaced."""
        self.results[name] = result
        draft = self._path.with_suffix(".draft")
        lines = [f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in self.results.items()]
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        draft.replace(self._path)
