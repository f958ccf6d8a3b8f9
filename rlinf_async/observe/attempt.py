"""The message of a run to the process that would start it again: where it writes, and how it goes on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_async.observe.failures import read_failures

PLACE_VARIABLE = "RLINF_ASYNC_ATTEMPT"
"""The environment variable that names the file of the message; without it, no process waits for one."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run that has found its place, and has started or is about to."""

    run_dir: str
    checkpoints: str
    """The folder that holds its checkpoints."""
    resume: str
    """The override with which the same command goes on from the newest of them."""
    newest: int = 0
    """The number of the newest that was there before it began; what it writes has higher ones."""

    last_fault: dict[str, Any] | None = None
    """The last of the record of faults before it began; what it records stands behind that one."""

    def announce(self) -> None:
        """Write the message for the process that has started this one, if it waits for one."""
        if place := os.environ.get(PLACE_VARIABLE):
            *_, last = [None, *read_failures(Path(self.run_dir))]
            half = Path(f"{place}.half")
            half.write_text(json.dumps(asdict(replace(self, last_fault=last))))
            half.replace(place)

    def faults(self) -> list[dict[str, Any]]:
        """Return the faults that this attempt has recorded, in order; all of them where older ones were
        moved away.
        """
        records = read_failures(Path(self.run_dir))
        others = [number for number, fault in enumerate(records, 1) if fault == self.last_fault]
        return records[others[-1] :] if others else records


def read_attempt(place: Path) -> Attempt | None:
    """Return the message in that file; None if there is none."""
    return Attempt(**json.loads(place.read_text())) if place.is_file() else None


class NothingLeftError(ValueError):
    """A run goes on from a checkpoint of its last step, or from one behind it."""

    def __init__(self, message: str, *, automatic: bool) -> None:
        super().__init__(message)
        self.automatic = automatic
        """True if the run was to go on from any checkpoint that there is: then it has ended, and
        nothing is wrong."""


def check_left(step: int, steps: int, *, key: str, automatic: bool) -> None:
    """See that a run of `steps` has something to train after `step`; `key` is that of the config.

    Raises:
        NothingLeftError: it has not.
    """
    if 0 < steps <= step:
        raise NothingLeftError(
            f"nothing is left to train: the checkpoint was saved after step {step}, and {key}={steps}; "
            f"to go on, set {key} to more than {step}",
            automatic=automatic,
        )
