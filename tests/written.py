"""What this process writes, by Python's own audit events: independent of who writes, and by which library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
)
OF_PYTHON = ("__pycache__", ".pyc", "/dev/null", "/proc/")
"""Parts of paths that Python itself writes when it imports, and of what is no file."""

_lists: list[list[str]] = []
_hooked: list[bool] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _lists or (event != "open" and event not in CHANGES):
        return
    path = str(arguments[0])
    opens_to_read = event == "open" and not (int(arguments[2] or 0) & WRITING_FLAGS)
    if not opens_to_read and not any(part in path for part in OF_PYTHON):
        for noted in _lists:
            noted.append(f"{event} {path}")


@contextmanager
def noting_writes() -> Iterator[list[str]]:
    """In this block every file that is opened to be written, and every name that is made or removed."""
    # A hook stays for as long as the process: there is one.
    if not _hooked:
        sys.addaudithook(_note)
        _hooked.append(True)
    noted: list[str] = []
    _lists.append(noted)
    try:
        yield noted
    finally:
        _lists.remove(noted)
