"""Files that a command writes where its user says, not through a link that lies there."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf_async.observe.files import write_whole


def write_output(path: Path, content: bytes | str) -> None:
    """Give the file `path` this content, whole or not at all.

    Raises:
        ValueError: it cannot be written, or a link or no file has its name.
    """
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content, private=False)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; choose another file") from error


def write_json(path: Path, content: object) -> None:
    """Write plain data as JSON.

    Raises:
        ValueError: as `write_output`.
    """
    write_output(path, json.dumps(content, indent=2) + "\n")
