"""Reports of RLinf's worker groups about workers that fail.

A group prints the error and sends SIGUSR1 to its own process, once for every call that has failed. RLinf's
handler then kills all actors, leaves Ray and exits, whatever the driver is doing. Here both become one error.
"""

from __future__ import annotations

import signal
from importlib import import_module

from rlinf_async.ray_runtime.cluster.termination import TERMINATION

GROUP_MODULE = "rlinf.scheduler.worker.worker_group"


class PrintedWords:
    """Collects the messages of the groups, in the place of `print`."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def note(self, text: object = "", *_: object, **__: object) -> None:
        self._said.append(str(text))

    def first(self) -> str | None:
        """The first failure in a line: whose call it was, and the last line of its error; None before."""
        if not self._said:
            return None
        call, _, error = self._said[0].partition(": exception is ")
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return (
            f"{call.removeprefix('Exception occurred while running ')}: {lines[-1] if lines else 'it died'}"
        )


def hear_worker_groups() -> None:
    """Have worker groups that fail raise one RuntimeError in the driver; called once its cluster is up."""
    words = PrintedWords()
    # The name is looked up in the module first; an RLinf that says it otherwise says it as ever.
    vars(import_module(GROUP_MODULE))["print"] = words.note
    TERMINATION.take_for_failure(signal.SIGUSR1, words.first)
