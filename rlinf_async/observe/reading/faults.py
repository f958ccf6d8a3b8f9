"""Reads the record of faults of a run, which may be damaged or foreign."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rlinf_async.observe.events import FaultCounts
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.read_files import lines_in, opened_to_read, records_of, typed
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_files import MAX_RECORD_BYTES

MAX_LINE_BYTES = 1 << 20
"""Bytes of the longest line of faults that is read; a run writes about ten thousand at most."""
MAX_FAULTS_BYTES = 2 * MAX_RECORD_BYTES
"""The last fault that was added may go beyond the bytes of a full record."""


def read_faults(run_dir: Path) -> list[Fault]:
    """Return the faults of a run, with those of its earlier attempts, in the order of the record."""
    return [fault for fault in recorded_faults(RunDir(run_dir)) if fault is not None]


def count_faults(run_dir: Path) -> FaultCounts:
    """Count the faults of a run, with those of its earlier attempts; the faults are not kept in memory."""
    return FaultCounts.of(filter(None, recorded_faults(RunDir(run_dir))))


class FaultReader:
    """Reads the faults that are added to the record from now on, each once."""

    def __init__(self, run_dir: Path) -> None:
        self._path, self._began = RunDir(run_dir).failures, time.time()
        self._position, self._file_number = 0, -1

    def new(self) -> list[Fault]:
        """Return the faults since the last call; an unfinished line is left for the next call."""
        found: list[Fault] = []
        with suppress(OSError), opened_to_read(self._path, limit=MAX_FAULTS_BYTES) as (file, size):
            number = os.fstat(file.fileno()).st_ino
            if number != self._file_number or size < self._position:  # a new file
                self._position, self._file_number = 0, number
            # In pieces: an earlier attempt may have left a large record.
            while self._position < size:
                file.seek(self._position)
                text = file.read(min(size - self._position, MAX_LINE_BYTES))
                whole, end, unfinished = text.rpartition(b"\n")
                if not end and len(text) < MAX_LINE_BYTES:
                    break
                # A line longer than MAX_LINE_BYTES is left out.
                self._position += len(text) - (len(unfinished) if end else 0)
                found += filter(None, _faults(whole.splitlines()))
        # The record may hold the faults of earlier attempts.
        return [fault for fault in found if fault.time >= self._began]


def recorded_faults(places: RunDir) -> Iterator[Fault | None]:
    """Yield the faults in the order of the record; None for a line that cannot be read."""
    with suppress(OSError):
        yield from _faults(lines_in(places.failures, limit=MAX_FAULTS_BYTES, longest=MAX_LINE_BYTES))


def _faults(lines: Iterable[bytes]) -> Iterator[Fault | None]:
    """Yield the fault of each line; None for a line that cannot be read."""
    for line in lines:
        record = next(records_of([line.decode(errors="replace")]), {})
        yield typed(Fault, record) if "time" in record else None
