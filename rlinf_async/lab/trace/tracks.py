"""The place of a span in a drawing: its process, its track, and a lane in which spans nest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlinf_async.observe.spans import SPAN_KINDS, Process, Span, kind_and_rank

PROCESS_ORDER = list(Process)
TRACK_ORDER = list(dict.fromkeys(kind.track for kind in SPAN_KINDS.values() if kind.track))


@dataclass(frozen=True)
class Lane:
    """A row of a trace: a process and a thread in it, as numbers and in words."""

    pid: int
    tid: int
    process: str
    name: str


def track_of(span: Span) -> tuple[int, str]:
    """Return the place of a span in its process: a number to sort by, and a name."""
    if "shard" in span:
        return int(span["shard"]), f"shard {span['shard']}"
    kind = SPAN_KINDS.get(span["kind"])
    name = kind.track if kind is not None and kind.track else str(span["kind"])
    return (TRACK_ORDER.index(name) if name in TRACK_ORDER else len(TRACK_ORDER)), name


def lanes_of(spans: Sequence[Span]) -> list[tuple[Span, Lane]]:
    """Every span with its lane, in order of their beginnings.

    Within a lane spans nest or follow each other; those that would overlap are put into another one.
    """
    tracks: dict[tuple[str, tuple[int, str]], list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span["process"], track_of(span)].append(span)
    pids = {name: pid for pid, name in enumerate(sorted({p for p, _ in tracks}, key=_process_order), start=1)}
    tids: dict[str, int] = defaultdict(int)
    placed: list[tuple[Span, Lane]] = []
    for (process, (_, name)), spans_of_track in sorted(tracks.items(), key=lambda item: item[0]):
        for number, row in enumerate(_rows(spans_of_track)):
            tids[process] += 1
            label = name if number == 0 else f"{name} ({number + 1})"
            lane = Lane(pids[process], tids[process], process, label)
            placed += [(span, lane) for span in row]
    return sorted(placed, key=lambda item: (item[0]["began"], -item[0]["ended"]))


@dataclass
class _Row:
    """Spans that nest or follow each other, and the ends of those that are open at the last beginning."""

    spans: list[Span] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def takes(self, span: Span) -> bool:
        """Put `span` into the row, unless it would overlap."""
        while self.ends and self.ends[-1] <= span["began"]:
            self.ends.pop()
        if self.ends and span["ended"] > self.ends[-1]:
            return False
        self.spans.append(span)
        self.ends.append(span["ended"])
        return True


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    rows: list[_Row] = []
    for span in sorted(spans, key=lambda span: (span["began"], -span["ended"])):
        if not any(row.takes(span) for row in rows):
            rows.append(_Row())
            rows[-1].takes(span)
    return [row.spans for row in rows]


def _process_order(name: str) -> tuple[int, str, int]:
    kind, rank = kind_and_rank(name)
    place = PROCESS_ORDER.index(Process(kind)) if kind in PROCESS_ORDER else len(PROCESS_ORDER)
    return place, kind, rank or 0
