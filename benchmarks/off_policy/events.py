"""Counted events of a run's processes, and the windows of its turns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

Event = tuple[float, str, int, float]
"""Time of day, kind, number, and seconds that it took."""


def read_events(folder: Path) -> list[Event]:
    """Return the events of all processes, in the order of time."""
    lines = (line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())
    return sorted(tuple(json.loads(line)) for line in lines)


def windows(events: Iterable[Event]) -> list[tuple[float, float]]:
    """Return the begin and the end of each turn that has ended, in the order of turns."""
    begins = {number: at for at, kind, number, _ in events if kind == "begin"}
    ends = {number: at for at, kind, number, _ in events if kind == "end"}
    return [(begins[number], ends[number]) for number in sorted(ends)]


def counted(events: Iterable[Event], span: tuple[float, float]) -> tuple[Counter[str], dict[str, float]]:
    """Return the sum of numbers within `span` by kind, and the mean seconds of an event by kind."""
    counts: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    for at, kind, number, took in events:
        if span[0] < at <= span[1]:
            counts[kind] += number
            seconds.setdefault(kind, []).append(took)
    return counts, {kind: round(sum(each) / len(each), 3) for kind, each in seconds.items() if any(each)}
