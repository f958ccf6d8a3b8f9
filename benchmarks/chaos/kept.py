"""The results of an experiment in one file, kept as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Kept:
    """What each run has come to, by its name; whoever is interrupted goes on where there is no result yet."""

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
