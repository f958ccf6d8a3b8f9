"""The identity of a process behind a number: numbers are given again, and a file can name any.

A run records of each of its processes when it has started and what it runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

FIELD_OF_START = 19
"""In `/proc/N/stat`, behind the name: ticks of the clock since the machine has started."""


def identity(pid: int) -> dict[str, Any] | None:
    """`started` and `command` of a process of this machine, as plain data; None if there is none.

    A process may give itself another title, so that the command is the program that runs.
    """
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name stands in brackets, and may hold some.
        started = int(stat.rpartition(")")[2].split()[FIELD_OF_START])
        return {"started": started, "command": os.readlink(f"/proc/{pid}/exe")}
    return None
