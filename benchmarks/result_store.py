"""Files that keep the results of an experiment, so that an interrupted experiment repeats no finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append `row` to `path` as one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of `path`, one a line; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class ResultStore:
    """The result of each run, by the name of the run, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Any) -> None:
        """Write `result` as one line of the file; an earlier result of this name is replaced."""
        self.results[name] = result
        draft = self._path.with_suffix(".draft")
        lines = [f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in self.results.items()]
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        draft.replace(self._path)
