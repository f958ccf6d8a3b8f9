"""Reads the spans of a run's processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf_async.observe.read_files import finite, names_in, read_regular, records_of
from rlinf_async.observe.reading import shapes
from rlinf_async.observe.spans import MAX_FILE_BYTES, Span


def read_spans(directory: Path) -> list[Span]:
    """Return the spans of all processes, by the clock of the run, sorted by end; each has its `process`.

    Damaged lines are left out.
    """
    spans: list[Span] = []
    for path in names_in(directory, ".jsonl"):
        process, offset = path.stem, 0.0
        for record in _records(path):
            if "process" in record:
                offset_field = record.get("offset", 0.0)
                process, offset = str(record["process"]), float(offset_field) if finite(offset_field) else 0.0
            elif (span := shapes.span(record)) is not None:
                began, end = span["began"] + offset, span["ended"] + offset
                spans.append({**span, "began": began, "ended": end, "process": process})
    return sorted(spans, key=lambda span: span["ended"])


def read_processes(directory: Path) -> dict[str, int]:
    """Return the process numbers of all processes with spans, by name."""
    pids = {}
    for path in names_in(directory, ".jsonl"):
        header = next(_records(path), {})
        if "process" in header and isinstance(header.get("pid"), int):
            pids[str(header["process"])] = int(header["pid"])
    return pids


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = read_regular(path, limit=2 * MAX_FILE_BYTES)
    except OSError:
        return
    yield from records_of(content.decode(errors="replace").splitlines())
