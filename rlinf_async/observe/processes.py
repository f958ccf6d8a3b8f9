"""The processes of a run: as its records call them, and as they are known again on a machine."""

from __future__ import annotations

import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

FIELD_OF_START = 19
"""In `/proc/N/stat`, behind the name: ticks of the clock since the machine has started."""


class Process(StrEnum):
    """The kinds of processes, in the order in which data passes them."""

    DRIVER = "driver"
    ENV = "env worker"
    REQUESTS = "request channel"
    INFERENCE = "inference rank"
    COORDINATOR = "coordinator"
    LEARNER = "learner rank"

    def numbered(self, rank: int) -> str:
        """`env worker 0`."""
        return f"{self} {rank}"


def kind_and_rank(name: str) -> tuple[str, int | None]:
    """`("env worker", 0)` of `env worker 0`; the driver has no rank."""
    kind, _, rank = name.rpartition(" ")
    return (kind, int(rank)) if kind and rank.isdecimal() else (name, None)


def identity(pid: int) -> dict[str, Any] | None:
    """`started` and `command` of a process of this machine, as plain data; None if there is none.

    Numbers are given again, and a file can name any: a run records of each of its processes when it has
    started and what it runs. A process may give itself another title, so that the command is the program
    that runs.
    """
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name stands in brackets, and may hold some.
        started = int(stat.rpartition(")")[2].split()[FIELD_OF_START])
        return {"started": started, "command": os.readlink(f"/proc/{pid}/exe")}
    return None
