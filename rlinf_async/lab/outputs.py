"""Write files to paths that the user gives; a symbolic link there is refused."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf_async.observe.files import write_whole


def write_output(path: Path, content: bytes | str) -> None:
    """Write `content` to the file `path` atomically.

    Raises:
        ValueError: the file cannot be written, or the path is a link or no regular file.
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
