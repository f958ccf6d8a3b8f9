"""An attempt of a run: its message to the process that restarts runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlinf_async.core.failures import NothingLeftError
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.files import write_whole
from rlinf_async.observe.reading.faults import read_faults

PLACE_VARIABLE = "RLINF_ASYNC_ATTEMPT"
"""The environment variable with the file for the message; unset if no process waits for one."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run that has started, or is about to start, in the directories given here."""

    run_dir: str
    checkpoints: str
    """The folder of its checkpoints."""
    resume: str
    """The override with which the same command resumes from the newest checkpoint."""
    newest: int = 0
    """The highest sequence number of checkpoints before this attempt; its own have higher ones."""

    last_fault: float | None = None
    """The time of the last recorded fault before this attempt; its own faults follow in the record."""

    def announce(self) -> None:
        """Write the message for the process that has started this one, if that waits for a message."""
        if place := os.environ.get(PLACE_VARIABLE):
            *_, last = [None, *(fault.time for fault in read_faults(Path(self.run_dir)))]
            write_whole(Path(place), json.dumps(asdict(replace(self, last_fault=last))).encode())

    def faults(self) -> list[Fault]:
        """Return the faults that this attempt has recorded, in order.

        All recorded faults are its own if `last_fault` is not in the record any more.
        """
        records = read_faults(Path(self.run_dir))
        others = [number for number, fault in enumerate(records, 1) if fault.time == self.last_fault]
        return records[others[-1] :] if others else records


def read_attempt(place: Path) -> Attempt | None:
    """Return the message in file `place`; None if there is no such file."""
    return Attempt(**json.loads(place.read_text())) if place.is_file() else None


def check_left(step: int, steps: int, *, key: str, automatic: bool) -> None:
    """Check that a run of `steps` steps has steps left after `step`; `key` is the config key of `steps`.

    Raises:
        NothingLeftError: no step is left.
    """
    if 0 < steps <= step:
        raise NothingLeftError(
            f"nothing is left to train: the checkpoint was saved after step {step}, and {key}={steps}; "
            f"to go on, set {key} to more than {step}",
            automatic=automatic,
        )
