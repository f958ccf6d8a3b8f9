"""The identity of a process behind a number: numbers are given again, and a file can name any.

A run records of each of its processes when it has started and what it runs, and each holds the pipe open
that `observe.stacks` has made for it in the run directory. All three are compared before a signal is sent to
a number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlinf_async.observe.run_dir import RunDir

FIELD_OF_START = 19
"""In `/proc/N/stat`, behind the name: ticks of the clock since the machine has started."""
FIRST_NUMBER = 2
"""Smaller ones mean the machine's first process, or groups of processes."""


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


def same_process(record: Mapping[str, Any], run_dir: Path) -> bool:
    """Return True if the process that a record of the run names lives, is the same one, and belongs to the
    run.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < FIRST_NUMBER or pid == os.getpid():
        return False
    now = identity(pid)
    if now is None or any(record.get(name) != fact for name, fact in now.items()):
        return False
    return _holds_pipe(pid, RunDir(run_dir).stacks.resolve())


def _holds_pipe(pid: int, stacks: Path) -> bool:
    """Return True if a process has its pipe open, by which it is asked for its stacks and which has its
    number.
    """
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                opened = Path(os.readlink(descriptor))
                if opened.parent == stacks and opened.name.endswith(f"-{pid}.ask"):
                    return True
    return False
