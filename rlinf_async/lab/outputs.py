"""Write files to paths that the user gives; a symbolic link there is refused."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from rlinf_async.observe.files import write_whole
from rlinf_async.observe.read_files import opened_to_read

MAX_OUTPUT_BYTES = 1 << 30
GZIP_MARK = b"\x1f\x8b"


def check_replaceable(path: Path, mark: bytes) -> None:
    """Check that writing to `path` loses nothing of the user's: the file is missing, empty, or has `mark`,
    by which a command knows its own output.

    Raises:
        ValueError: the file has other content, or cannot be read.
    """
    if not os.path.lexists(path):
        return
    try:
        with opened_to_read(path, limit=MAX_OUTPUT_BYTES) as (file, size):
            content = file.read()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; choose another file") from error
    if content.startswith(GZIP_MARK):
        content = _unpacked_begin(content, len(mark))
    if size and mark not in content:
        raise ValueError(
            f"{path} holds something else, which would be lost; choose another file by --output, or move it"
        )


def _unpacked_begin(content: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(content, size)
    except zlib.error:
        return b""


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
